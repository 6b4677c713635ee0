"""Every first algorithm learns the quickstart's task from random weights, through the command that users type."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "reverse_digits"
LIMIT_S = 180

ESTIMATORS = ("gae", "reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The example's data and model, in a folder of their own."""
    folder = tmp_path_factory.mktemp("reverse_digits")
    subprocess.run([sys.executable, EXAMPLE / "prepare.py", "--output", folder], check=True)
    return folder


def learn(prepared: Path, output: Path, *flags: str) -> list[dict]:
    """Run ``rlhf train`` on the example and return its evaluations."""
    command = [sys.executable, "-m", "rlhf_cli.main", "train", "-c", str(EXAMPLE / "run.toml")]
    command += ["--model", str(prepared / "model"), "--data", str(prepared / "train.jsonl")]
    command += ["--eval.data", f"held_out={prepared / 'test.jsonl'}", "--output", str(output)]
    command += ["--log.progress", "plain", *flags]
    subprocess.run(command, check=True, cwd=ROOT)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "eval" in line]


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_estimator_learns_to_reverse_digits(prepared, tmp_path, estimator):
    evaluations = learn(prepared, tmp_path / "run", "--estimator", estimator)

    accuracy = [line["eval"]["eval/held_out/T0/pass@1"] for line in evaluations]
    seconds = [line["time_s"] for line in evaluations]
    reached = [s for a, s in zip(accuracy, seconds, strict=True) if a >= 0.90]
    print(
        f"{estimator}: {accuracy[0]:.3f} -> {accuracy[-1]:.3f} in {seconds[-1]:.0f} s, >= 0.90 after {reached[:1]} s"
    )
    assert accuracy[0] < 0.10
    assert accuracy[-1] >= 0.90
    assert seconds[-1] <= LIMIT_S


@pytest.mark.slow
def test_the_critic_of_gae_learns_values(prepared, tmp_path):
    """It starts at 0 everywhere; then its mean follows that of the returns, and it tells good states from bad ones."""
    learn(prepared, tmp_path / "run", "--estimator", "gae", "--steps", "220")

    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [line["metrics"] for line in map(json.loads, lines) if "metrics" in line]
    assert steps[0]["critic/value_mean"] == 0.0
    late = steps[-70:]
    explained = sum(step["critic/explained_variance"] for step in late) / len(late)
    gap = sum(step["critic/value_mean"] - step["critic/return_mean"] for step in late) / len(late)
    returns = sum(step["critic/return_mean"] for step in late) / len(late)
    print(f"explained variance {explained:.3f}, mean value off by {gap:+.2f} of {returns:.2f}")
    assert explained > 0.08
    assert abs(gap) < 0.1 * returns
