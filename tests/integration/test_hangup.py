"""A run whose terminal is closed, or has Ctrl-C pressed, from the outside: real processes, a real terminal."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlhf_cli.main import main

from .forked_runs import metrics_without_times, weights_digest

HANG_S = 300
RUN = [
    *(sys.executable, "-m", "rlhf_cli.main", "train", "--model", "model", "--data", "mine.jsonl"),
    *("--reward", "my_reward.py:score", "--rollout.batch_size", "3"),
    *("--rollout.n_samples_per_prompt", "4", "--rollout.max_new_tokens", "4"),
    *("--data.max_prompt_tokens", "8", "--output", "run", "--log.tensorboard", "false"),
    *("--log.curve", "false"),
]


@pytest.fixture
def started(workspace):
    """Starts processes; whatever works in the workspace when the test ends is killed."""
    processes = []

    def start(command, **options):
        process = subprocess.Popen(command, cwd=workspace, **options)
        processes.append(process)
        return process

    yield start
    for pid in working_in(workspace):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def working_in(folder):
    """Processes with this working directory, but for the tests' own."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(path / "cwd") == str(folder) and int(path.name) != os.getpid():
                yield int(path.name)


def wait_for(condition, process):
    give_up = time.monotonic() + HANG_S
    while not condition():
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < give_up
        time.sleep(0.05)


def num_steps(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.slow
def test_a_hangup_finishes_the_step_and_saves(started, workspace):
    command = [*RUN, "--log.progress", "off", "--steps", "100000"]
    process = started(command, stderr=subprocess.PIPE, start_new_session=True)
    wait_for(lambda: num_steps(workspace / "run") >= 1, process)

    os.killpg(process.pid, signal.SIGHUP)
    _, told = process.communicate(timeout=HANG_S)

    assert process.returncode == 130, told
    assert b"stopped by SIGHUP; continue with --resume auto" in told
    assert list((workspace / "run" / "checkpoints").glob("step-*"))


@pytest.mark.slow
@pytest.mark.parametrize("progress", [pytest.param("plain", marks=pytest.mark.matrix), "live"])
def test_a_closed_terminal_finishes_the_step_and_saves(started, workspace, progress):
    """The shell dies of it, the kernel tells the run, and the run has nowhere to write to any more."""
    ours, theirs = pty.openpty()
    command = [*RUN, "--log.progress", progress, "--steps", "100000"]
    keep_code = 'trap "" HUP; (trap - HUP; exec "$@"); echo $? > code'
    shell = ["setsid", "--ctty", "bash", "-c", '"$@"; true', "shell"]
    shell += ["bash", "-c", keep_code, "bash", *command]
    process = started(shell, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.set_blocking(ours, False)

    def stepped():
        with contextlib.suppress(BlockingIOError):
            os.read(ours, 65536)
        return num_steps(workspace / "run") >= 1

    wait_for(stepped, process)
    os.close(ours)
    code = workspace / "code"
    give_up = time.monotonic() + HANG_S
    while not (code.exists() and code.read_text()) and time.monotonic() < give_up:
        time.sleep(0.05)

    assert code.read_text() == "130\n"
    assert list((workspace / "run" / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_a_run_under_nohup_goes_on(started, workspace):
    command = ["nohup", *RUN, "--log.progress", "off", "--steps", "4"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = started(command, start_new_session=True, **quiet)
    wait_for(lambda: num_steps(workspace / "run") >= 1, process)

    os.killpg(process.pid, signal.SIGHUP)

    assert process.wait(timeout=HANG_S) == 0
    assert num_steps(workspace / "run") == 4


HELD = """
import time
from pathlib import Path

calls = 0

def score(response):
    global calls
    calls += 1
    while calls > 12 and Path("hold").exists():  # from the second step on
        Path("held").touch()
        time.sleep(0.01)
    return sum(map(ord, response)) % 7
"""


# Modules that vLLM imports warn.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.scale
@pytest.mark.slow
def test_ctrl_c_of_a_terminal_under_vllm_finishes_the_step_and_resumes_exactly(started, workspace):
    """A terminal sends SIGINT to all processes of its group, which vLLM's belong to."""
    pytest.importorskip("vllm")
    (workspace / "my_reward.py").write_text(HELD)
    engine = [
        "--engine",
        "vllm",
        "--engine.vllm.threads",
        "1",
        "--engine.vllm.kv_cache_gib",
        "0.25",
    ]
    command = [*RUN, *engine, "--log.progress", "off", "--steps", "4"]
    hold = workspace / "hold"
    hold.touch()
    process = started(command, stderr=subprocess.PIPE, start_new_session=True)
    wait_for((workspace / "held").exists, process)

    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.5)  # time to die, for those that would
    hold.unlink()
    _, told = process.communicate(timeout=HANG_S)

    assert process.returncode == 130, told
    assert b"stopped by SIGINT; continue with --resume auto" in told
    assert num_steps(workspace / "run") == 2
    # In this process, which has imported torch already; vLLM's core is a process of its own in any case.
    _, _, _, *words = command
    assert main([*words, "--resume", "auto"]) == 0
    assert main(["whole" if word == "run" else word for word in words]) == 0
    run, whole = workspace / "run", workspace / "whole"
    assert metrics_without_times(run) == metrics_without_times(whole)
    assert weights_digest(run) == weights_digest(whole)
