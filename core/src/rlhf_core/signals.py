"""Signals that reach all processes of a job, and the start of processes that they do not reach."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SCHEDULER_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals of schedulers some time before the end of a job, which SIGTERM and then SIGKILL follow."""


@contextmanager
def held_back(*signals: signal.Signals) -> Iterator[None]:
    """Start processes in the body that these signals do not end.

    A signal that comes meanwhile reaches this thread after the body; if the process has other threads, one of them may
    take it at once.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # programs inherit the mask
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
