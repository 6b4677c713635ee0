"""Ray places, vLLM generates, DeepSpeed trains on two ranks: the same configuration, the same first step."""

from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("vllm")
pytest.importorskip("deepspeed")

pytestmark = [pytest.mark.scale, pytest.mark.slow]

TWO_RANKS = ["--runtime", "ray", "--backend", "deepspeed", "--runtime.ray.ranks.policy", "2"]
COMMON = ["--reward", "vary.py:vary", "--algo.loss.entropy_coef", "0.1", "--steps", "3"]

RECORDED = """
import json
from pathlib import Path

import numpy as np

from rlhf_core.contracts import Stop, Trajectory, Turn
from rlhf_plugin_agents.single_turn import SingleTurn


def page(task):
    return Path("recorded") / f"{task.uid.epoch}.{task.uid.prompt}.json"


class Recorder(SingleTurn):
    \"\"\"Plays, and writes down what the engine answered.\"\"\"

    def __init__(self):
        Path("recorded").mkdir()

    async def run(self, task, samples, context):
        answers = await super().run(task, samples, context)
        lines = [
            {
                "token_ids": one.token_ids.tolist(),
                "logprobs": one.rollout_logprobs.tolist(),
                "version": one.weight_version.tolist(),
                "stop": one.turns[0].stop,
            }
            for one in answers
        ]
        page(task).write_text(json.dumps(lines))
        return answers


class Player:
    \"\"\"Gives what was written down, and asks no engine.\"\"\"

    async def run(self, task, samples, context):
        lines = json.loads(page(task).read_text())
        start = len(task.prompt_ids)
        assert all(tuple(line["token_ids"][:start]) == task.prompt_ids for line in lines)
        return [
            Trajectory(
                uid=task.uid._replace(sample=sample),
                token_ids=np.array(line["token_ids"], dtype=np.int32),
                action_mask=np.arange(len(line["token_ids"])) >= start,
                rollout_logprobs=np.array(line["logprobs"], dtype=np.float32),
                weight_version=np.array(line["version"], dtype=np.int32),
                turns=(Turn(start=start, end=len(line["token_ids"]), stop=Stop(line["stop"])),),
            )
            for sample, line in zip(samples, lines, strict=True)
        ]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """What a run left."""

    lines: list[dict]
    samples: str


@pytest.fixture(scope="module")
def trained() -> dict[tuple[str, ...], FinishedRun]:
    """Runs by their flags, of all tests of this file: each start of Ray and its ranks is dear, and workspaces are
    alike."""
    return {}


@pytest.fixture
def run_once(train, workspace, trained):
    def run(*flags: str) -> FinishedRun:
        if flags not in trained:
            lines = train("once", *flags)
            trained[flags] = FinishedRun(lines=lines, samples=samples(workspace / "once"))
            (workspace / "once").rename(workspace / f"once-{len(trained)}")
        return trained[flags]

    return run


# The next test has the first step at stage 3.
@pytest.mark.parametrize("stage", ["2", pytest.param("3", marks=pytest.mark.matrix)])
def test_two_ranks_of_zero_take_the_first_step_of_one_process(run_once, stage):
    alone = run_once(*COMMON)
    ranks = run_once(*COMMON, *TWO_RANKS, "--backend.deepspeed.zero_stage", stage)

    first, second = alone.lines[0]["metrics"], ranks.lines[0]["metrics"]
    for name in ("policy/grad_norm", "loss/entropy", "policy/entropy", "reward/mean"):
        assert second[name] == pytest.approx(first[name], rel=1e-4), name


ASLEEP = ("--runtime.sleep", "always")


@pytest.mark.parametrize(
    ("weights", "stage", "sleep"),
    [
        pytest.param("store", "2", (), marks=pytest.mark.matrix),
        ("memory", "3", (*ASLEEP, "--engine.vllm.sleep_level", "2")),
        pytest.param("collective", "2", (), marks=pytest.mark.matrix),
    ],
)
def test_all_three_together_train_on_what_was_sampled(train, workspace, weights, stage, sleep):
    """And one process takes the same steps, when it is given what vLLM wrote in place of what it would write."""
    (workspace / "recorded.py").write_text(RECORDED)
    engine = ["--engine", "vllm", "--engine.vllm.threads", "1", "--runtime.ray.weights", weights]
    ranks = [*TWO_RANKS, *engine, "--backend.deepspeed.zero_stage", stage, *sleep]
    lines = train("run", *COMMON, *ranks, "--executor", "recorded.py:Recorder")
    alone = train("alone", *COMMON, "--executor", "recorded.py:Player")

    for line in lines:
        assert line["timing"]["sync_gib_per_s"] > 0
        assert line["metrics"]["mismatch/logprob_diff_mean"] <= 1e-4
        assert line["metrics"]["policy/grad_norm"] > 0
    first, second = alone[0]["metrics"], lines[0]["metrics"]
    for name in ("policy/grad_norm", "loss/policy", "loss/entropy", "reward/mean"):
        # A policy loss can be 0 up to rounding: with a baseline, on-policy.
        assert second[name] == pytest.approx(first[name], rel=1e-4, abs=1e-6), name
    assert samples(workspace / "alone") == samples(workspace / "run")


@pytest.mark.parametrize(
    "stage", ["2", *(pytest.param(stage, marks=pytest.mark.matrix) for stage in "013")]
)
def test_sleep_changes_no_number_under_ray(run_once, stage):
    """To the bit: the engine has a copy of the weights, which is updated while it sleeps."""
    ranks = [*COMMON, *TWO_RANKS, "--backend.deepspeed.zero_stage", stage]
    # On a CPU none sleeps unless it is told to, so this is the run of the other tests.
    awake, asleep = run_once(*ranks), run_once(*ranks, *ASLEEP)

    assert [line["metrics"] for line in asleep.lines] == [line["metrics"] for line in awake.lines]
    assert asleep.samples == awake.samples
    assert all("moves_s" in line["timing"] for line in asleep.lines)
    assert not any("moves_s" in line["timing"] for line in awake.lines)


SLOTS = ("--rollout.concurrency", "1")
"""One prompt after the other; otherwise all of a step are played at once."""


def test_on_policy_slots_change_no_number_under_ray(run_once):
    ranks = [*COMMON, *TWO_RANKS, "--backend.deepspeed.zero_stage", "2"]
    whole, slots = run_once(*ranks), run_once(*ranks, *SLOTS)

    assert [line["metrics"] for line in slots.lines] == [line["metrics"] for line in whole.lines]
    assert slots.samples == whole.samples


@pytest.mark.matrix
def test_on_policy_slots_change_no_answer_of_vllm(train, workspace):
    """Not to the bit: vLLM's kernels depend on the size of a batch, so log-probs differ by their rounding."""
    engine = ["--engine", "vllm", "--engine.vllm.threads", "1", *TWO_RANKS]
    whole = train("whole", *COMMON, *engine)
    slots = train("slots", *COMMON, *engine, *SLOTS)

    assert samples(workspace / "slots") == samples(workspace / "whole")
    for one, other in zip(slots, whole, strict=True):
        for name in ("policy/grad_norm", "loss/entropy", "policy/entropy"):
            assert one["metrics"][name] == pytest.approx(other["metrics"][name], rel=1e-4), name


def samples(run: Path) -> str:
    return (run / "samples.jsonl").read_text()
