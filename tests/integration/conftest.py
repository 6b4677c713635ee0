"""What integration tests share: a small data set, a reward file and a tiny model, in a folder of their own."""

import json
from pathlib import Path

import pytest

from rlhf_core.testing.tiny import write_tiny_model

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
