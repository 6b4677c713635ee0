"""Kill and resume: the files of the uninterrupted run, to the byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import transformers  # noqa: F401 - imported once, before the forks
from tests.deadlines import HANG_S
from tests.integration.forked_runs import run_in_a_fork

from .conftest import SMALL

WORDS = ["generate", *SMALL, "--model", "model", "--data", "prompts.jsonl"]
WORDS += ["--rollout.n_samples_per_prompt", "3", "--reward", "rewards.py:ones"]
CONCURRENCY = ["--rollout.concurrency", "2"]
BEST = ["--select.mode", "best", "--select.truncated"]


def in_a_fork(folder, output, *words, fault="", concurrency=CONCURRENCY, select=BEST):
    words = [*WORDS, *concurrency, *select, "--output", output, *words]
    return run_in_a_fork(folder, output, words, fault=fault)


def files(folder, output):
    return [(folder / output / f"{name}.jsonl").read_bytes() for name in ("completions", "best")]


@pytest.fixture(scope="module")
def uninterrupted(workspace):
    """The workspace, which has the folder ``whole`` from then on; returns its files."""
    assert in_a_fork(workspace, "whole") == 0, (workspace / "whole.log").read_text()
    return files(workspace, "whole")


@pytest.fixture
def whole(uninterrupted, folder):
    return uninterrupted


QUICK = ("generate:4", "save:5", "export:0")
FURTHER = ("generate:0", "save:0", "save:8")


@pytest.mark.parametrize(
    "fault", [*QUICK, *(pytest.param(f, marks=pytest.mark.slow) for f in FURTHER)]
)
def test_a_killed_run_resumes_to_the_same_bytes(folder, whole, fault):
    killed = in_a_fork(folder, "killed", fault=fault)
    assert os.WIFSIGNALED(killed), (folder / "killed.log").read_text()

    assert in_a_fork(folder, "killed", "--resume") == 0, (folder / "killed.log").read_text()

    assert files(folder, "killed") == whole
    assert list((folder / "killed").glob("*.tmp")) == []


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 700, -1])
def test_a_file_cut_anywhere_is_completed_to_the_same_bytes(folder, whole, size):
    path = folder / "whole" / "completions.jsonl"
    os.truncate(path, size % len(whole[0]))
    (folder / "whole" / "best.jsonl").unlink()

    assert in_a_fork(folder, "whole", "--resume") == 0

    assert files(folder, "whole") == whole


def test_a_finished_folder_gives_another_data_set_without_generating(folder, whole):
    """A fault at every prompt would kill the process if one was generated."""
    select = ["--select.mode", "pairs", "--select.truncated"]

    assert in_a_fork(folder, "whole", "--resume", select=select, fault="generate:0") == 0

    assert files(folder, "whole") == whole
    rows = [json.loads(line) for line in (folder / "whole/pairs.jsonl").read_text().splitlines()]
    assert rows
    assert all(
        row["chosen"].count("1") - row["rejected"].count("1") == row["margin"] > 0 for row in rows
    )


def test_restart_begins_anew_and_keeps_what_was_there(folder, whole):
    before = {path.name: path.read_bytes() for path in (folder / "whole").glob("*.*l")}
    assert before.keys() == {"completions.jsonl", "best.jsonl", "config.toml"}

    assert in_a_fork(folder, "whole", "--resume", "restart", "--seed", "1") == 0

    kept = folder / "whole" / "earlier-1"
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert files(folder, "whole") != whole
    assert in_a_fork(folder, "whole", "--resume", "restart") == 0
    assert files(folder, "whole") == whole
    assert (folder / "whole" / "earlier-2" / "completions.jsonl").exists()


def refusal(folder, *words, code=2):
    status = in_a_fork(folder, "whole", *words)
    assert os.waitstatus_to_exitcode(status) == code
    return (folder / "whole.log").read_text()


def test_a_folder_with_completions_is_refused_without_resume(folder, whole):
    text = refusal(folder)

    assert "Add --resume to continue them, or --resume restart to start over" in text


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--seed", "1"], "seed"),
        (["--rollout.temperature", "0.5"], "rollout.temperature"),
        (["--reward.ones.weight", "2"], "reward.ones.weight"),
        (["--data.max_samples", "5"], "data.max_samples"),
    ],
)
def test_an_option_that_completions_depend_on_may_not_change(folder, whole, words, option):
    recorded = (folder / "whole" / "config.toml").read_text()

    assert f"--resume: {option} is " in refusal(folder, "--resume", *words)

    assert (folder / "whole" / "config.toml").read_text() == recorded
    assert list((folder / "whole").glob("*.tmp")) == []


def test_options_that_completions_do_not_depend_on_may_change(folder, whole):
    os.truncate(folder / "whole" / "completions.jsonl", 900)
    words = ["--resume", "--reward.ones.timeout_s", "9", "--engine.embedded.slots", "2"]

    assert in_a_fork(folder, "whole", *words, concurrency=["--rollout.concurrency", "7"]) == 0

    assert files(folder, "whole") == whole


def test_other_data_under_the_same_name_are_refused(folder, whole):
    rows = (folder / "prompts.jsonl").read_text()
    (folder / "prompts.jsonl").write_text(rows.replace("3+1", "3+2"))

    text = refusal(folder, "--resume")

    assert "completions.jsonl:4: its prompt is not the one at this place of --data now" in text


@pytest.mark.slow
def test_ctrl_c_leaves_a_file_to_go_on_with_and_says_so(folder, whole):
    path = folder / "stopped" / "completions.jsonl"
    # Rewards answer until the file has a prompt, so that it never has all.
    slow = (
        f"import pathlib, time\nfile = pathlib.Path({str(path)!r})\ndef ones(response):\n"
        "    while file.exists() and file.stat().st_size:\n        time.sleep(0.01)\n"
        "    return float(response.count('1'))\n"
    )
    fast = (folder / "rewards.py").read_text()
    (folder / "rewards.py").write_text(slow)
    command = [sys.executable, "-m", "rlhf_cli", *WORDS, *CONCURRENCY, *BEST, "--output", "stopped"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + HANG_S
    while not (path.exists() and path.stat().st_size) and time.monotonic() < give_up:
        time.sleep(0.02)

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANG_S)

    assert process.returncode == 130
    written = len(path.read_text().splitlines())
    assert 0 < written < 9
    assert f"interrupted: by SIGINT: {written} of 9 prompts are in stopped/completions.jsonl" in err
    (folder / "rewards.py").write_text(fast)
    assert in_a_fork(folder, "stopped", "--resume") == 0
    assert files(folder, "stopped") == whole
