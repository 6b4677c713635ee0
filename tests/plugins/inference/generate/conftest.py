"""A folder with prompts, chats and rewards, and ``rlhf generate`` on them in this process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rlhf_cli.main import main

REWARDS = '''
def ones(response):
    """Number of the digit 1."""
    return float(response.count("1"))


def length(response):
    return len(response) / 10


def same(response):
    return 1.0


def broken(response):
    raise ValueError("no score today")
'''


@pytest.fixture(scope="module")
def workspace(base, tmp_path_factory) -> Path:
    """A folder with ``model``, ``prompts.jsonl``, ``chats.jsonl`` and ``rewards.py``."""
    folder = tmp_path_factory.mktemp("generate")
    (folder / "model").symlink_to(base)
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(9)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    chats = [{"prompt": [{"role": "user", "content": f"{n}?"}]} for n in range(3)]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)) + "\n")
    (folder / "rewards.py").write_text(REWARDS)
    return folder


@pytest.fixture
def folder(workspace, tmp_path, monkeypatch) -> Path:
    """A copy of the workspace, as the current directory."""
    shutil.copytree(workspace, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = ("--rollout.max_new_tokens", "6", "--data.max_prompt_tokens", "32", "--log.progress", "off")


@pytest.fixture
def generate(folder):
    """Runs the command; returns the lines of the file ``name`` of the output folder."""

    def run(
        *words: str,
        code: int = 0,
        model: str = "model",
        data: str = "prompts.jsonl",
        output: str = "out",
        name: str = "completions",
    ):
        common = ["--model", model, "--data", data, "--output", output]
        assert main(["generate", *SMALL, *common, *words]) == code
        path = folder / output / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return run
