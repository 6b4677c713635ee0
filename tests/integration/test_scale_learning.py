"""Ray places, vLLM generates, DeepSpeed trains on two gloo ranks: the quickstart's task is learned, with two digits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from tests.deadlines import HANG_S, PATIENT_S

from rlhf_trainer.durable.records import replay

pytest.importorskip("ray")
pytest.importorskip("vllm")
pytest.importorskip("deepspeed")

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.scale, pytest.mark.slow]

STEPS, FEW_STEPS, PROMPTS, SAMPLES = 120, 12, 32, 8
FLAGS = {
    "rollout.batch_size": PROMPTS,
    "rollout.n_samples_per_prompt": SAMPLES,
    "rollout.max_new_tokens": 3,
    "actor.adam.lr": 5e-3,
    "eval.every": 0,
    "eval.pass_threshold": 4,
    "log.progress": "off",
    "log.curve": "false",
    "log.tensorboard": "false",
    "engine": "vllm",
    "engine.vllm.threads": 1,
    "engine.vllm.kv_cache_gib": 0.25,
    "backend": "deepspeed",
    "runtime": "ray",
    "runtime.ray.ranks.policy": 2,
    "runtime.ray.threads": 1,
    # As Ray counts them; the ranks and the engine take turns on fewer.
    "runtime.ray.cpus": 3,
    "runtime.ray.show_output": "false",
}

COUNTED = '''
import dataclasses

import numpy as np

from rlhf_plugin_agents.single_turn import SingleTurn


class Counted(SingleTurn):
    """Tells of each answer how many versions of the weights wrote it."""

    def __init__(self):
        pass

    async def run(self, task, samples, context):
        answers = await super().run(task, samples, context)
        return [
            dataclasses.replace(one, metrics={"versions": len(np.unique(one.weight_version))})
            for one in answers
        ]
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way to place and to pace a run. Together the four have every pair of stage, placement and staleness."""

    zero_stage: int
    split: bool
    weights: str
    max_staleness: int = 0
    in_flight: bool = False

    @property
    def flags(self) -> dict[str, object]:
        """Beside what they share; an option that would change nothing is refused, so it is left out."""
        flags: dict[str, object] = {
            "backend.deepspeed.zero_stage": self.zero_stage,
            "runtime.ray.weights": self.weights,
        }
        if self.split:
            # Unset, ranks and engine share bundles.
            flags["runtime.ray.colocate"] = "none"
        if self.max_staleness:
            flags["rollout.max_staleness"] = self.max_staleness
            flags["rollout.in_flight_updates"] = str(self.in_flight).lower()
        return flags


MODES = {
    "colocated, ZeRO-2": Mode(zero_stage=2, split=False, weights="store"),
    "split, ZeRO-3": Mode(zero_stage=3, split=True, weights="collective"),
    "split, ZeRO-2, ahead": Mode(zero_stage=2, split=True, weights="memory", max_staleness=2),
    "colocated, ZeRO-3, ahead, in flight": Mode(
        zero_stage=3, split=False, weights="collective", max_staleness=2, in_flight=True
    ),
}


AHEAD = "colocated, ZeRO-3, ahead, in flight"
CASES = [
    # Another placement than AHEAD, which CI runs for fewer steps. All of them take minutes.
    pytest.param(
        mode,
        id=name,
        marks=getattr(pytest.mark, "learning" if name == "split, ZeRO-3" else "matrix"),
    )
    for name, mode in MODES.items()
]


@pytest.mark.parametrize("mode", CASES)
def test_two_digits_are_learned(tmp_path, mode):
    """Chance is 1 right answer in 100, and 0.5 of 4 points; on-policy, one process learns to be right always."""
    lines = run(tmp_path, mode, STEPS)

    steps = [line["metrics"] for line in lines if "metrics" in line]
    before, after = (line["eval"]["eval/held_out/T0/pass@1"] for line in lines if "eval" in line)
    points = [step["reward/mean"] for step in steps]
    first, last = sum(points[:20]) / 20, sum(points[-20:]) / 20
    print(f"{mode}: {first:.2f} -> {last:.2f} of 4 points, {before:.2f} -> {after:.2f} right")
    assert before <= 0.10
    assert after >= 0.50
    assert last >= first + 1.5
    check_samples(tmp_path, mode, steps, STEPS)


def test_a_short_run_trains_on_every_sample_of_weights_that_are_new_enough(tmp_path):
    mode = MODES[AHEAD]

    lines = run(tmp_path, mode, FEW_STEPS)

    steps = [line["metrics"] for line in lines if "metrics" in line]
    check_samples(tmp_path, mode, steps, FEW_STEPS)


def check_samples(folder: Path, mode: Mode, steps: list[dict], num_steps: int) -> None:
    """Every sample was trained on, once, and was written by weights that the mode allows."""
    assert len(steps) == num_steps
    versions = [step["rollout/versions"] for step in steps]
    print(f"versions of an answer, mean of a step: at most {max(versions):.3f}")
    balance = replay(folder / "run" / "ledger.jsonl")
    assert balance.unsettled() == []
    assert balance.trained.total() == num_steps * PROMPTS * SAMPLES

    if mode.max_staleness:
        oldest = [step["rollout/staleness_max"] for step in steps]
        assert 0 < max(oldest) <= mode.max_staleness
        assert sum(oldest) / num_steps > 0.5
    else:
        # At each step the trainer finds the log-probs that vLLM gave.
        assert max(step["mismatch/logprob_diff_mean"] for step in steps) <= 1e-4
    # Drained, an answer has one version; in flight, weights change between the tokens of some.
    assert (max(versions) > 1) == mode.in_flight


def run(folder: Path, mode: Mode, steps: int) -> list[dict]:
    """Train in a process of its own, see that nothing of it stays, and return the lines of its metrics."""
    mark = f"SCALE_LEARNING={uuid4()}"
    env = os.environ | {"OMP_NUM_THREADS": "1"} | dict([mark.split("=")])
    data, output = folder / "data", folder / "run"
    (folder / "counted.py").write_text(COUNTED)
    prepare = ["examples/reverse_digits/prepare.py", "--digits", "2", "--held-out", "20"]
    subprocess.run([sys.executable, *prepare, "--output", data], cwd=ROOT, env=env, check=True)
    flags = {
        "output": output,
        "model": data / "model",
        "data": data / "train.jsonl",
        "eval.data": f"held_out={data / 'test.jsonl'}",
        "executor": f"{folder / 'counted.py'}:Counted",
        "steps": steps,
        **FLAGS,
        **mode.flags,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "rlhf_cli", "train", "-c", "examples/reverse_digits/run.toml"]
    subprocess.run([*command, *words], cwd=ROOT, env=env, check=True, timeout=PATIENT_S)

    give_up = time.monotonic() + HANG_S
    while (left := started_with(mark)) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not left
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def started_with(mark: str) -> list[str]:
    """Command lines of the processes whose environment has ``mark``, wherever they are in the tree."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            # It ended meanwhile, or is another user's.
            continue
    return [command for command in found if command]
