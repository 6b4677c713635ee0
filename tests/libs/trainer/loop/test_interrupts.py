"""Which signals let a step finish, and which end the process at once."""

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest
from tests.deadlines import HANG_S

from rlhf_trainer.loop.interrupts import Interrupts, interrupted_code


@pytest.fixture(autouse=True)
def handlers_restored():
    before = {number: signal.getsignal(number) for number in Interrupts.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    with Interrupts():  # which forgets the signals of runs before
        assert interrupted_code() == 130


@pytest.mark.parametrize("number", Interrupts.SIGNALS)
def test_the_first_signal_is_only_noted(number):
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        assert interrupts.requested is None
        os.kill(os.getpid(), number)
        assert interrupts.requested == number.name

    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_one_stops_at_once(number):
    with Interrupts():
        os.kill(os.getpid(), signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt, match=number.name):
            os.kill(os.getpid(), number)

    assert interrupted_code() == 128 + number


def test_a_task_that_is_cancelled_by_it_can_say_what_ended_it():
    """The event loop takes the interrupt, and the task that waits hears of no signal."""
    interrupts, heard = Interrupts(), []

    async def waits():
        with interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGINT)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                heard.append(interrupts.at_once)
                raise

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(waits())

    assert heard == ["stopped at once by SIGINT"]


WAITS = """
import os, signal, threading, time
from rlhf_trainer.loop import interrupts

interrupts.LEAVE_S = {leave_s}
threading.Thread(target=time.sleep, args=[600]).start()  # the interpreter would wait for it
interrupts.own_process()
with interrupts.Interrupts():
    for number in {signals}:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            pass
"""


@pytest.mark.parametrize(
    ("signals", "leave_s", "code"),
    [([2, 2], 0.05, 130), ([2, 15], 0.05, 143), ([2, 2, 2], 600, 130)],
)
def test_a_process_that_cannot_end_is_ended(signals, leave_s, code):
    program = WAITS.format(signals=signals, leave_s=leave_s)

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=HANG_S, check=False
    )

    assert done.returncode == code
    assert done.stderr == b"\nended at once; what did not stop was left\n"


def test_the_two_hangups_of_a_closed_terminal_are_one_request():
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)

        assert interrupts.requested == "SIGHUP"


@pytest.mark.parametrize("warning", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_a_schedulers_warning_and_its_sigterm_are_one_request(warning):
    """It sends the one some time before a job's end, and the other at the end: the step may still become whole."""
    with Interrupts() as interrupts:
        for number in (warning, warning, signal.SIGTERM, warning):
            os.kill(os.getpid(), number)
        assert interrupts.requested == "SIGTERM"
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_the_program_itself_uses_stays_its_own():
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGUSR1)

        assert interrupts.requested is None
    assert heard == [1]


def test_the_first_signal_is_answered_and_the_others_are_not(capfd):
    """A step may take an hour, and who hears nothing presses Ctrl-C again, which loses it."""
    with Interrupts("it ends after this step") as interrupts:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.requested == "SIGHUP"
    with Interrupts():
        os.kill(os.getpid(), signal.SIGHUP)

    assert capfd.readouterr().err == "\nSIGHUP: it ends after this step\n"


def test_a_hangup_that_nohup_keeps_out_stays_out():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)

        assert interrupts.requested is None

    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_background_job_that_started_without_sigint_can_be_stopped():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)

        assert interrupts.requested == "SIGINT"


def test_outside_of_the_main_thread_nothing_is_caught_and_nothing_raises():
    before = [signal.getsignal(number) for number in Interrupts.SIGNALS]
    found = []

    def enter():
        with Interrupts() as interrupts:
            found.append([signal.getsignal(number) for number in Interrupts.SIGNALS])
            found.append(interrupts.requested)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()

    assert found == [before, None]
