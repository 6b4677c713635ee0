"""Signals of a job: the same ones everywhere, and processes that they do not reach."""

import signal
import subprocess
import sys
import threading

import pytest

from rlhf_core.signals import SCHEDULER_WARNINGS, held_back
from rlhf_guard.processes.keeper import SIGNALS_TO_A_JOB
from rlhf_trainer.loop.interrupts import Interrupts

BLOCKED = "import signal; print(*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))"


def blocked_in_a_child():
    shown = subprocess.check_output([sys.executable, "-I", "-S", "-c", BLOCKED], text=True)
    return set(map(int, shown.split()))


def test_runs_and_keepers_hear_every_warning_of_a_scheduler():
    """A keeper imports the standard library alone, so its signals are written down a second time."""
    assert set(SCHEDULER_WARNINGS) <= set(SIGNALS_TO_A_JOB)
    assert set(SIGNALS_TO_A_JOB) <= set(Interrupts.SIGNALS)


def test_processes_of_the_body_are_started_without_the_signals():
    before = blocked_in_a_child()

    with held_back(signal.SIGHUP, *SCHEDULER_WARNINGS):
        inside = blocked_in_a_child()

    assert inside - before == {signal.SIGHUP, *SCHEDULER_WARNINGS}
    assert blocked_in_a_child() == before


def test_a_signal_that_comes_meanwhile_reaches_this_thread_afterwards():
    heard = []
    earlier = signal.signal(signal.SIGUSR1, lambda *_: heard.append("now"))
    try:
        with held_back(*SCHEDULER_WARNINGS):
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            assert heard == []
        assert heard == ["now"]
    finally:
        signal.signal(signal.SIGUSR1, earlier)


def test_an_error_in_the_body_lets_the_signals_through_again():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    with pytest.raises(KeyError), held_back(*SCHEDULER_WARNINGS):
        raise KeyError

    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
