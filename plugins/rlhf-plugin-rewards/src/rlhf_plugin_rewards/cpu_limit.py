"""A limit on the CPU time of a call, for libraries that may compute for ever.

A limit in seconds of a clock would end calls on a busy machine that need a hundredth of it on an idle one.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class CpuTimeExceededError(BaseException):
    """A call took more CPU time than it may. No ``Exception``: libraries that catch those have to let this one pass."""


def under_cpu_limit(seconds: float, call: Callable[[], T]) -> T:
    """Return what ``call`` returns. Works in a process's main thread alone, and counts the time of all its threads.

    The call ends between two of Python's instructions, so one that stays in compiled code ends when that returns. A
    result of a call that swallowed the end is none: it says what the library makes of an interruption.

    Args:
        seconds: CPU time of this process, that of the operating system for it included.

    Raises:
        CpuTimeExceededError: the call took longer.
    """
    is_running, is_over = True, False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        if is_running:
            is_over = True
            raise CpuTimeExceededError

    before = signal.signal(signal.SIGPROF, stop)
    try:
        # It goes off again, in case that the library swallows the first one.
        signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
        try:
            result = call()
        finally:
            is_running = False
        if is_over:
            raise CpuTimeExceededError
        return result
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
