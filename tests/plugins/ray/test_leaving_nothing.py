"""However a run ends, no process, port, shared memory or file of its own Ray cluster stays behind."""

import os
import signal

import pytest
from tests.deadlines import HANG_S, PATIENT_S
from tests.signals import send_and_wait

pytestmark = [pytest.mark.scale, pytest.mark.slow]
pytest.importorskip("ray")


def step_of(folder):
    path = folder / "run" / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for_a_step(run, folder):
    run.until(lambda: step_of(folder) >= 1)


def test_a_run_that_finishes(start, folder):
    run = start("--steps", "2")

    assert run.end() == 0, run.output
    assert (folder / "run" / "model" / "config.json").exists()
    assert not list(run.temporary.iterdir())


def test_a_run_that_fails(start):
    run = start("--steps", "2", reward="fail")

    assert run.end() == 1
    assert "this reward always fails" in run.output


def test_a_run_that_cannot_start(start):
    run = start("--steps", "2", "--runtime.ray.engines", "64", "--runtime.ray.cpus", "2")

    assert run.end() == 2
    assert "needs 64 CPUs, the Ray cluster has 2" in run.output


@pytest.mark.parametrize("shell", [False, True], ids=["by itself", "started by a script"])
def test_one_ctrl_c_lets_the_step_finish_and_saves(start, folder, shell):
    run = start("--steps", "100000", shell=shell)
    wait_for_a_step(run, folder)

    os.killpg(run.process.pid, signal.SIGINT)  # a terminal sends it to every process of the group
    run.end()

    assert "resume auto" in run.output
    assert list((folder / "run" / "checkpoints").glob("step-*"))


VLLM = ("--engine", "vllm", "--engine.vllm.threads", "1", "--engine.vllm.kv_cache_gib", "0.25")


@pytest.mark.matrix
def test_one_ctrl_c_does_so_with_vllm_below_an_actor(start, folder):
    pytest.importorskip("vllm")
    run = start("--steps", "100000", *VLLM)
    wait_for_a_step(run, folder)

    os.killpg(run.process.pid, signal.SIGINT)
    run.end()

    assert "stopped by SIGINT; continue with --resume auto" in run.output
    assert list((folder / "run" / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_driver_does_too(start, folder, number):
    run = start("--steps", "100000")
    wait_for_a_step(run, folder)

    run.process.send_signal(number)
    run.end()

    assert f"stopped by {number.name}; continue with --resume auto" in run.output
    assert list((folder / "run" / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_closed_terminal_or_a_schedulers_warning_does_too(start, folder, number):
    """Both come to all processes of the run."""
    run = start("--steps", "100000")
    wait_for_a_step(run, folder)

    os.killpg(run.process.pid, number)
    run.end()

    assert "resume auto" in run.output
    assert list((folder / "run" / "checkpoints").glob("step-*"))


def test_two_ctrl_c_stop_at_once(start, folder):
    run = start("--steps", "100000")
    wait_for_a_step(run, folder)

    send_and_wait(run.process.pid, signal.SIGINT, os.killpg)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.end() != 0


STUBBORN = """
import pathlib, signal, subprocess, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "3611"], start_new_session=True)
pathlib.Path("held").touch()
time.sleep(3600)
"""
"""Code that ends long after a hang, hears no signal, and has a child that left its session."""
PLACES = {
    "driver": (),
    "worker": ("--runtime.ray.rollout_workers", "1"),
}
"""Who starts the process of the reward."""


@pytest.mark.parametrize(
    ("number", "place"),
    [
        (signal.SIGINT, "driver"),
        (signal.SIGTERM, "worker"),
        pytest.param(signal.SIGTERM, "driver", marks=pytest.mark.matrix),
        pytest.param(signal.SIGINT, "worker", marks=pytest.mark.matrix),
    ],
)
def test_a_second_signal_ends_a_run_whose_reward_hangs(start, folder, number, place):
    held = folder / "held"
    code = STUBBORN.replace('"held"', repr(str(held)))
    (folder / "my_reward.py").write_text(f"def score(response):\n    exec({code!r})\n")
    run = start("--steps", "2", "--reward.score.timeout_s", str(PATIENT_S), *PLACES[place])
    run.until(held.exists)

    send_and_wait(run.process.pid, number)
    run.process.send_signal(number)

    assert run.process.wait(HANG_S) == 128 + number, run.output
    run.assert_no_folder()


@pytest.mark.parametrize(
    ("number", "send"),
    [
        pytest.param(signal.SIGINT, os.killpg, id="a terminal's Ctrl-C"),
        pytest.param(signal.SIGTERM, os.kill, id="SIGTERM to the driver"),
    ],
)
def test_a_second_signal_ends_a_run_with_vllm_below_an_actor(start, folder, number, send):
    pytest.importorskip("vllm")
    run = start("--steps", "100000", *VLLM)
    wait_for_a_step(run, folder)

    send_and_wait(run.process.pid, number, send)
    send(run.process.pid, number)  # the step that the first one waits for is not over

    assert run.process.wait(HANG_S) == 128 + number, run.output
    run.assert_no_folder()


@pytest.mark.matrix
def test_a_second_signal_ends_a_run_whose_vllm_is_starting(start):
    pytest.importorskip("vllm")
    run = start("--steps", "2", *VLLM)
    run.until(lambda: run.has_process(b"VLLM"))

    send_and_wait(run.process.pid, signal.SIGINT, os.killpg)
    os.killpg(run.process.pid, signal.SIGINT)

    assert run.process.wait(HANG_S) == 128 + signal.SIGINT, run.output
    run.assert_no_folder()


def test_a_driver_that_is_killed(start, folder):
    run = start("--steps", "100000")
    wait_for_a_step(run, folder)

    run.process.kill()
    assert run.end() == -signal.SIGKILL
    run.assert_no_folder()


def test_a_driver_that_is_killed_while_ray_starts(start):
    run = start("--steps", "100000")
    run.until(lambda: list(run.temporary.glob("rlhf-ray-*/s/session_*")))

    run.process.kill()
    assert run.end() == -signal.SIGKILL
    run.assert_no_folder()
