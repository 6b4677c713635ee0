"""However a run ends, no process, no shared memory and no file of its own Ray cluster stays behind."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rlhf_core.testing.tiny import write_tiny_model

pytestmark = [pytest.mark.scale, pytest.mark.slow]
pytest.importorskip("ray")

REWARD = """
def score(response):
    return sum(map(ord, response)) % 7

def fail(response):
    raise ValueError("this reward always fails")
"""
PATIENCE_S = 200
GONE_WITHIN_S = 20
"""After a run's end, also by kill -9. On an idle machine it is 2; Ray's own agents would take 60."""


@pytest.fixture
def folder(tmp_path):
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n:03d}="} for n in range(0, 999, 37)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "my_reward.py").write_text(REWARD)
    return tmp_path


@pytest.fixture
def start(folder):
    """Starts ``rlhf train --runtime ray``; afterwards everything has to be gone."""
    # Short, because paths of sockets have to be.
    temporary = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
    shared_before = set(os.listdir("/dev/shm"))
    started = []

    def run(*flags, reward="score", shell=False):
        command = [sys.executable, "-m", "rlhf_cli.main", "train"]
        command += ["--model", "model", "--data", "mine.jsonl", "--output", "run"]
        command += ["--reward", f"my_reward.py:{reward}", "--rollout.batch_size", "3"]
        command += ["--rollout.n_samples_per_prompt", "4", "--rollout.max_new_tokens", "6"]
        command += ["--data.max_prompt_tokens", "8", "--log.progress", "off"]
        command += ["--log.tensorboard", "false", "--log.curve", "false"]
        command += ["--runtime", "ray", "--runtime.ray.object_store_mib", "100"]
        command += ["--runtime.ray.show_output", "false", "--runtime.ray.close_timeout_s", "3"]
        command += flags
        if shell:
            command = ["sh", "-c", f"{shlex.join(command)}; exit $?"]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        process.temporary = temporary
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    give_up = time.monotonic() + GONE_WITHIN_S
    while (left := processes_of(folder)) and time.monotonic() < give_up:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, left
    shared = {name for name in os.listdir("/dev/shm") if "plasma" in name} - shared_before
    assert not shared
    shutil.rmtree(temporary, ignore_errors=True)


def processes_of(folder):
    """Processes that work in the run's folder, as all that it starts do -> their command."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        # Not by environment: Ray's processes write their titles over it.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if os.readlink(path / "cwd").startswith(str(folder)):
                found[int(path.name)] = (path / "cmdline").read_bytes()[:120]
    return found


def step_of(folder):
    path = folder / "run" / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for_a_step(process, folder):
    give_up = time.monotonic() + PATIENCE_S
    while step_of(folder) < 1:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_a_run_that_finishes(start, folder):
    process = start("--steps", "2")

    output, _ = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 0, output
    assert (folder / "run" / "model" / "config.json").exists()
    assert not list(Path(process.temporary).iterdir())


def test_a_run_that_fails(start):
    process = start("--steps", "2", reward="fail")

    output, _ = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 1
    assert "this reward always fails" in output


def test_a_run_that_cannot_start(start):
    process = start("--steps", "2", "--runtime.ray.engines", "64", "--runtime.ray.cpus", "2")

    output, _ = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 2
    assert "needs 64 CPUs, the Ray cluster has 2" in output


@pytest.mark.parametrize("shell", [False, True], ids=["by itself", "started by a script"])
def test_one_ctrl_c_lets_the_step_finish_and_saves(start, folder, shell):
    process = start("--steps", "100000", shell=shell)
    wait_for_a_step(process, folder)

    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to every process of the group
    output, _ = process.communicate(timeout=PATIENCE_S)

    assert "resume auto" in output
    assert list((folder / "run" / "checkpoints").glob("step-*"))


def test_a_sigterm_does_too(start, folder):
    process = start("--steps", "100000")
    wait_for_a_step(process, folder)

    process.terminate()
    output, _ = process.communicate(timeout=PATIENCE_S)

    assert "resume auto" in output


def test_two_ctrl_c_stop_at_once(start, folder):
    process = start("--steps", "100000")
    wait_for_a_step(process, folder)

    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)

    assert process.returncode != 0


def test_a_driver_that_is_killed(start, folder):
    process = start("--steps", "100000")
    wait_for_a_step(process, folder)

    process.kill()
    process.communicate(timeout=PATIENCE_S)

    assert process.returncode == -signal.SIGKILL
