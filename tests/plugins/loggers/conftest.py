"""A clock that is moved by hand, and run folders with a past."""

import json

import pytest

from rlhf_core.contracts import RunInfo


class Clock:
    """Callable like ``time.monotonic``; ``now`` is set by the test."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def run_info(tmp_path):
    """Make the RunInfo of a run in ``tmp_path/run`` with the given ``log`` options."""

    def make(*, total_steps=3, start_step=0, notes=(), **log):
        output = tmp_path / "run"
        output.mkdir(exist_ok=True)
        defaults = {"progress": "plain", "tensorboard": False, "curve": False, "samples": 4}
        return RunInfo(
            output=output,
            config={"log": defaults | log},
            total_steps=total_steps,
            start_step=start_step,
            notes=notes,
        )

    return make


@pytest.fixture
def write_metrics(tmp_path):
    """Write the metrics.jsonl of a run with one evaluation before the first step and one at the end."""

    def write(rewards=(0.1, 0.2, 0.4), evals=(0.0, 0.5)):
        lines = [{"step": 0, "time_s": 0.0, "eval": {"eval/test/T0/pass@1": evals[0]}}]
        for step, reward in enumerate(rewards, start=1):
            metrics = {"reward/mean": reward, "policy/entropy": 1.0}
            lines.append(
                {"step": step, "time_s": 2.0 * step, "metrics": metrics, "timing": {"step_s": 2.0}}
            )
        last = {"eval/test/T0/pass@1": evals[1], "eval/test/T0/reward": 0.9}
        lines.append({"step": len(rewards), "time_s": 2.0 * len(rewards), "eval": last})
        output = tmp_path / "run"
        output.mkdir(exist_ok=True)
        (output / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return output

    return write
