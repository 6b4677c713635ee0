"""Which signals let a step finish, and which end the process at once."""

import os
import signal
import threading

import pytest

from rlhf_core.loop.interrupts import Interrupts


@pytest.fixture(autouse=True)
def handlers_restored():
    before = {number: signal.getsignal(number) for number in Interrupts.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_the_two_hangups_of_a_closed_terminal_are_one_request():
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)

        assert interrupts.requested == "SIGHUP"


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
