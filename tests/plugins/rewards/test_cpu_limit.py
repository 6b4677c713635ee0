import signal
import threading
import time

import pytest
from tests.deadlines import HANG_S

from rlhf_plugin_rewards.cpu_limit import CpuTimeExceededError, under_cpu_limit


def compute(seconds):
    """Take CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return "computed"


def wait(seconds):
    """Take time of a clock alone, as on a machine that computes for others."""
    time.sleep(seconds)
    return "waited"


def test_time_that_others_compute_does_not_count():
    assert under_cpu_limit(0.2, lambda: wait(0.6)) == "waited"


def test_a_call_that_computes_for_too_long_is_ended():
    with pytest.raises(CpuTimeExceededError):
        under_cpu_limit(0.1, lambda: compute(HANG_S))


def test_a_call_that_swallows_the_end_is_ended_again():
    def stubborn():
        try:
            compute(HANG_S)
        except BaseException:
            compute(HANG_S)

    with pytest.raises(CpuTimeExceededError):
        under_cpu_limit(0.1, stubborn)


def test_what_a_call_makes_of_its_end_is_no_result():
    def swallowing():
        try:
            compute(HANG_S)
        except BaseException:
            return "not equal"

    with pytest.raises(CpuTimeExceededError):
        under_cpu_limit(0.1, swallowing)


def test_nothing_is_left_behind():
    before = signal.getsignal(signal.SIGPROF)

    assert under_cpu_limit(0.2, lambda: compute(0.01)) == "computed"
    with pytest.raises(KeyError):
        under_cpu_limit(0.2, lambda: {}["a"])
    with pytest.raises(CpuTimeExceededError):
        under_cpu_limit(0.02, lambda: compute(HANG_S))

    assert signal.getsignal(signal.SIGPROF) == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    assert compute(0.1) == "computed"


def test_threads_cannot_have_a_limit():
    errors = []

    def limited():
        try:
            under_cpu_limit(1.0, lambda: None)
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=limited)
    thread.start()
    thread.join(HANG_S)

    assert len(errors) == 1
