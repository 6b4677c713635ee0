"""A folder with a model, tasks and rewards, and ``rlhf eval`` on them in this process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rlhf_cli.main import main

REWARDS = '''
def ones(response):
    """1 for an answer with the digit 1."""
    return float("1" in response)


def length(response):
    return len(response) / 10


def odd(response, answer):
    """Fails for the rows with an even answer."""
    if int(answer) % 2 == 0:
        raise ValueError("no score today")
    return 1.0


def nan(response):
    return float("nan")
'''


@pytest.fixture(scope="module")
def workspace(base, tmp_path_factory) -> Path:
    """A folder with ``model``, ``prompts.jsonl``, ``chats.jsonl`` and ``rewards.py``."""
    folder = tmp_path_factory.mktemp("eval")
    (folder / "model").symlink_to(base)
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(9)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    chats = [{"prompt": [{"role": "user", "content": f"{n}?"}], "key": f"c{n}"} for n in range(3)]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)) + "\n")
    (folder / "rewards.py").write_text(REWARDS)
    return folder


@pytest.fixture
def folder(workspace, tmp_path, monkeypatch) -> Path:
    """A copy of the workspace, as the current directory."""
    shutil.copytree(workspace, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = ("--rollout.max_new_tokens", "6", "--log.progress", "off")
LONG = ("--rollout.max_length", "64")
DATA = ("--data", "prompts.jsonl", "--reward", "rewards.py:ones")


@pytest.fixture
def evaluate(folder):
    """Runs the command; returns the episodes and the summary of the output folder."""

    def run(*words: str, code: int = 0, model: str = "model", output: str = "out"):
        assert main(["eval", model, *SMALL, "--output", output, *words]) == code
        return results(folder / output)

    return run


def results(output: Path):
    episodes, summary = output / "episodes.jsonl", output / "summary.json"
    lines = [json.loads(line) for line in episodes.read_text().splitlines()]
    return lines, json.loads(summary.read_text())["sets"]
