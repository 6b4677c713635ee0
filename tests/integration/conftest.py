"""What integration tests share: a small data set, a reward file and a tiny model, in a folder of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_testing.tiny import write_tiny_model

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "reverse_digits"

REWARD = '''
def score(response, row):
    """Share of the answer's characters that stand in their place."""
    return sum(a == b for a, b in zip(response, row["answer"])) / len(row["answer"])
'''

VARY = """
def vary(response):
    \"""Differs between samples from the first step on, unlike an answer that has to be right.\"""
    return sum(map(ord, response)) % 7
"""


@pytest.fixture(scope="session")
def teacher(tmp_path_factory) -> Path:
    """A tiny model with other, stronger opinions than the workspace's."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    tiny = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
    return write_tiny_model(folder, **tiny, initializer_range=0.5, seed=7)


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    """The current directory, with ``model``, ``mine.jsonl`` (prompt, answer), ``my_reward.py`` and ``vary.py``."""
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n:03d}=", "answer": f"{n:03d}"} for n in range(0, 999, 37)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "my_reward.py").write_text(REWARD)
    (tmp_path / "vary.py").write_text(VARY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def train(workspace):
    """Runs ``rlhf train`` on the workspace in this process; returns the run's metrics lines."""

    def run(output: str, *flags: str, code: int = 0) -> list[dict]:
        from rlhf_cli.main import main

        common = ["--model", "model", "--data", "mine.jsonl", "--output", output]
        small = ["--rollout.batch_size", "3", "--rollout.n_samples_per_prompt", "4"]
        small += ["--rollout.max_new_tokens", "4", "--data.max_prompt_tokens", "8"]
        small += ["--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"]
        reward = (
            [] if "--reward" in flags or "--env" in flags else ["--reward", "my_reward.py:score"]
        )
        steps = [] if "--steps" in flags else ["--steps", "2"]
        assert main(["train", *common, *small, *reward, *steps, *flags]) == code
        return read_metrics(workspace / output)

    return run


def read_metrics(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text().splitlines() if run.exists() else []
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def reverse_digits(tmp_path_factory) -> Path:
    """The quickstart's data and model, in a folder of their own."""
    folder = tmp_path_factory.mktemp("reverse_digits")
    subprocess.run([sys.executable, EXAMPLE / "prepare.py", "--output", folder], check=True)
    return folder


@pytest.fixture
def learn(reverse_digits, tmp_path) -> Callable[..., list[dict]]:
    """Runs the quickstart with further flags, and another model if one is given, as users do; returns the run's metrics
    lines, and a last one with the seconds of a processor that it took."""

    def run(*flags: str, model: Path | None = None) -> list[dict]:
        command = [sys.executable, "-m", "rlhf_cli.main", "train", "-c", str(EXAMPLE / "run.toml")]
        command += ["--model", str(model or reverse_digits / "model")]
        command += ["--data", str(reverse_digits / "train.jsonl")]
        command += ["--eval.data", f"held_out={reverse_digits / 'test.jsonl'}"]
        command += ["--output", str(tmp_path / "run"), "--log.progress", "plain", *flags]
        before = os.times()
        subprocess.run(command, check=True, cwd=ROOT)
        lines = read_metrics(tmp_path / "run")
        now = os.times()
        seconds = now.children_user - before.children_user
        seconds += now.children_system - before.children_system
        return [*lines, {"processor_s": seconds}]

    return run


def require_learned(
    name: str, lines: list[dict], *, limit_s: float = 360, from_at_most: float = 0.10
) -> None:
    """From nothing, or from no more than a half-trained model has, to 0.90 of the held-out strings, in time: two
    processors may take three minutes, whatever else they do."""
    evaluations = [line for line in lines if "eval" in line]
    accuracy = [line["eval"]["eval/held_out/T0/pass@1"] for line in evaluations]
    seconds = [line["time_s"] for line in evaluations]
    reached = [s for a, s in zip(accuracy, seconds, strict=True) if a >= 0.90]
    print(
        f"{name}: {accuracy[0]:.3f} -> {accuracy[-1]:.3f} in {seconds[-1]:.0f} s, >= 0.90 after {reached[:1]} s"
    )
    assert accuracy[0] < from_at_most
    assert accuracy[-1] >= 0.90
    assert lines[-1]["processor_s"] <= limit_s


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Runs of three steps with a checkpoint of each, by what else they have, for tests of what a resumed run obeys."""
    from .options_at_resume import BegunRuns

    return BegunRuns(tmp_path_factory.mktemp("begun"))


@pytest.fixture
def small(begun, monkeypatch):
    """Starts a run that records what its third step asks, in the folder of ``begun``."""
    from .recorded_run import RecordedRun

    monkeypatch.chdir(begun.folder)
    return RecordedRun(begun.folder)
