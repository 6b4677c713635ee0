"""Ray places and vLLM generates, while an environment or an agent plays two turns: the reward rises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
from tests.deadlines import HANG_S, PATIENT_S
from tests.integration.test_scale_learning import started_with

from rlhf_trainer.durable.records import replay

pytest.importorskip("ray")
pytest.importorskip("vllm")

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "tests" / "plugins" / "endpoint" / "two_turn_agent.py"

pytestmark = [pytest.mark.scale, pytest.mark.matrix]

STEPS, PROMPTS, SAMPLES = 40, 16, 8
SHARED = {
    "steps": STEPS,
    "rollout.batch_size": PROMPTS,
    "rollout.n_samples_per_prompt": SAMPLES,
    "rollout.max_new_tokens": 2,
    "rollout.max_length": 32,
    "actor.adam.lr": 5e-3,
    "log.progress": "off",
    "log.curve": "false",
    "log.tensorboard": "false",
    "engine": "vllm",
    "engine.vllm.threads": 1,
    "engine.vllm.kv_cache_gib": 0.25,
    "runtime": "ray",
    "runtime.ray.threads": 1,
    "runtime.ray.cpus": 2,
    "runtime.ray.show_output": "false",
}
EXECUTORS = {
    "multi_turn": {
        "env": "echo_after_hint",
        "eval.every": 0,
        "env.echo_after_hint.num_digits": 4,
        "rollout.multi_turn.max_turns": 2,
    },
    "endpoint": {
        "data": "rows.jsonl",
        "data.max_prompt_tokens": 8,
        "rollout.endpoint.agent": f"{AGENT}:agent",
    },
}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_two_turns_are_learned_on_ray_with_vllm(tmp_path, executor):
    """Random weights find the form of an answer, 0.1, now and then; the right digit earns 1."""
    steps = run(tmp_path, {"executor": executor, **EXECUTORS[executor]})

    rewards = [step["reward/mean"] for step in steps]
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    print(f"{executor}: {first:.3f} -> {last:.3f}")
    assert len(steps) == STEPS
    assert all(step["rollout/turns"] == 2.0 for step in steps)
    # A digit that is written whatever the hint says earns 0.25 + 0.75 * 0.1.
    assert first <= 0.15
    assert last >= first + 0.1
    # At each step the trainer finds the log-probs that vLLM gave.
    assert max(step["mismatch/logprob_diff_mean"] for step in steps) <= 1e-4
    balance = replay(tmp_path / "run" / "ledger.jsonl")
    assert balance.unsettled() == []
    assert balance.trained.total() == STEPS * PROMPTS * SAMPLES


def run(folder: Path, flags: dict[str, object]) -> list[dict[str, float]]:
    """Train in a process of its own, see that nothing of it stays, and return the metrics of its steps."""
    mark = f"SCALE_ENVIRONMENTS={uuid4()}"
    env = os.environ | {"OMP_NUM_THREADS": "1"} | dict([mark.split("=")])
    prepare = [sys.executable, ROOT / "examples/two_turn/prepare.py", "--output", folder]
    subprocess.run(prepare, env=env, check=True)
    (folder / "rows.jsonl").write_text('{"prompt": "?"}\n' * PROMPTS)
    named = {"output": folder / "run", "model": folder / "model", **SHARED, **flags}
    words = [word for name, value in named.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "rlhf_cli", "train", *words]
    subprocess.run(command, cwd=folder, env=env, check=True, timeout=PATIENT_S)

    give_up = time.monotonic() + HANG_S
    while (left := started_with(mark)) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not left
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [line["metrics"] for line in map(json.loads, lines) if "metrics" in line]
