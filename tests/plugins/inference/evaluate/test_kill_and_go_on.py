"""Kill at several points: the same command continues to the bytes of an uninterrupted evaluation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import transformers  # noqa: F401 - imported once, before the forks
from tests.deadlines import HANG_S
from tests.integration.forked_runs import run_in_a_fork

from .conftest import DATA, SMALL

WORDS = ["eval", "model", *SMALL, *DATA, "--eval.temperatures", "0", "1", "--eval.n_samples", "3"]
WORDS += ["--rollout.concurrency", "2"]


def in_a_fork(folder, output, *words, fault=""):
    return run_in_a_fork(folder, output, [*WORDS, "--output", output, *words], fault=fault)


def files(folder, output):
    return [(folder / output / name).read_bytes() for name in ("episodes.jsonl", "summary.json")]


@pytest.fixture(scope="module")
def uninterrupted(workspace):
    assert in_a_fork(workspace, "whole") == 0, (workspace / "whole.log").read_text()
    return files(workspace, "whole")


@pytest.fixture
def whole(uninterrupted, folder):
    return uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["save:5", "export:0"])
def test_a_killed_evaluation_goes_on_to_the_same_bytes(folder, whole, fault):
    killed = in_a_fork(folder, "killed", fault=fault)
    assert os.WIFSIGNALED(killed), (folder / "killed.log").read_text()

    assert in_a_fork(folder, "killed") == 0, (folder / "killed.log").read_text()

    assert files(folder, "killed") == whole
    assert len((folder / "killed" / "seconds.jsonl").read_text().splitlines()) == 18
    assert list((folder / "killed").glob("*.tmp")) == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [4000])
def test_a_file_cut_anywhere_is_completed_to_the_same_bytes(folder, whole, size):
    os.truncate(folder / "whole" / "episodes.jsonl", size % len(whole[0]))

    assert in_a_fork(folder, "whole") == 0

    assert files(folder, "whole") == whole


@pytest.mark.slow
def test_ctrl_c_leaves_a_folder_to_go_on_with_and_says_so(folder, whole):
    path = folder / "stopped" / "episodes.jsonl"
    # Rewards answer until the file has a task, so that it never has all.
    slow = (
        f"import pathlib, time\nfile = pathlib.Path({str(path)!r})\ndef ones(response):\n"
        "    while file.exists() and file.stat().st_size:\n        time.sleep(0.01)\n"
        "    return float('1' in response)\n"
    )
    fast = (folder / "rewards.py").read_text()
    (folder / "rewards.py").write_text(slow)
    command = [sys.executable, "-m", "rlhf_cli", *WORDS, "--output", "stopped"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + HANG_S
    while not (path.exists() and path.stat().st_size) and time.monotonic() < give_up:
        time.sleep(0.02)

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANG_S)

    assert process.returncode == 130
    assert "interrupted: by SIGINT: " in err
    assert " of 18 tasks are in stopped/episodes.jsonl; the same command continues." in err
    (folder / "rewards.py").write_text(fast)
    assert in_a_fork(folder, "stopped") == 0
    assert files(folder, "stopped") == whole
