"""The example ``pipeline``, from demonstrations to reinforcement, as its README runs it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder that looks like the repository to the example, after all of its commands."""
    root = tmp_path_factory.mktemp("pipeline")
    here = root / "examples" / "pipeline"
    shutil.copytree(EXAMPLE, here, ignore=shutil.ignore_patterns("data"))
    run(root, here / "prepare.py")
    for line in readme_commands():
        run(root, "-m", "rlhf_cli.main", *line.split()[1:], "--log.progress", "off")
    return root


def readme_commands() -> list[str]:
    lines = (EXAMPLE / "README.md").read_text().splitlines()
    return [line.partition("#")[0] for line in lines if line.startswith("rlhf ")]


def run(root: Path, *words: object) -> None:
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def evaluations(root: Path, name: str) -> list[dict[str, float]]:
    """Return the metrics of each evaluation of a step, the first one before any training."""
    lines = (root / "runs" / "pipeline" / name / "metrics.jsonl").read_text().splitlines()
    return [record["eval"] for record in map(json.loads, lines) if "eval" in record]


def test_the_readme_runs_every_step():
    assert [line.split()[1] for line in readme_commands()] == ["sft", "rm", "dpo", "train"]


@pytest.mark.slow
def test_demonstrations_teach_the_digits_and_leave_the_mark_to_chance(root):
    # ln 2 for the mark and nothing for three digits and the end: 0.1386 nats a token
    assert evaluations(root, "sft")[-1]["eval/nll"] == pytest.approx(0.1386, abs=0.02)


@pytest.mark.slow
def test_the_reward_model_ranks_answers_that_were_held_out(root):
    first, *_, last = evaluations(root, "rm")

    assert first["eval/accuracy"] < 0.8
    assert last["eval/accuracy"] >= 0.95


@pytest.mark.slow
def test_preferences_move_the_margins(root):
    first, *_, last = evaluations(root, "dpo")

    assert first["eval/margin"] == pytest.approx(0.0, abs=1e-6)
    assert last["eval/margin"] > 0.2
    assert last["eval/accuracy"] >= 0.95


@pytest.mark.slow
def test_reinforcement_improves_the_score_of_the_reward_model(root):
    first, *_, last = evaluations(root, "rl")

    (name,) = (name for name in last if name.endswith("/reward"))
    assert last[name] > first[name] + 0.5  # standard deviations of the reward model's scores
