"""Ctrl-C, SIGTERM, SIGHUP and schedulers' warnings: the step is finished, a checkpoint is saved, and the run ends.

A second Ctrl-C or SIGTERM ends the run at once. SIGHUP comes when the run's terminal is closed, and from schedulers.
"At once" has a limit: what the run waits for then, be it an answer, a thread or a graphics card, may never come. A
process that exists for its command alone (``own_process``) ends ``LEAVE_S`` later whatever it does; its keepers end
what it had started, as after a SIGKILL.

Python hands signals to the main thread alone. In another thread nothing is caught, and whoever started the run there
passes requests on (``run_kind.Control``).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from rlhf_core.signals import SCHEDULER_WARNINGS

LEAVE_S = 5.0
"""Seconds between the second signal and the end of the process: time to close connections and files."""


@dataclass(slots=True)
class _Process:
    """Facts of the process, as signals are. A library for command lines puts a ``KeyboardInterrupt`` into an exit of
    its own."""

    stopped_by: int = signal.SIGINT
    """Signal that stopped a run at once."""
    is_own: bool = False
    """It exists for one command."""


_process = _Process()


def own_process() -> None:
    """Say that this process exists for one command, and ends ``LEAVE_S`` after a second signal, or with a third.

    Nobody says so where a program or a notebook goes on behind the run.
    """
    _process.is_own = True


def interrupted_code() -> int:
    """Return the exit code of this process if it was interrupted: 143 after a second SIGTERM, else 130."""
    return 128 + _process.stopped_by


def leave_within(seconds: float, exit_code: int) -> None:
    """End this process in so many seconds, if it exists for one command and has not ended by then.

    Args:
        exit_code: that of the process if it has to be ended.
    """
    if not _process.is_own:
        return
    # A thread that nobody waits for: the interpreter waits for all others before it ends.
    timer = threading.Timer(seconds, _leave, [exit_code])
    timer.daemon = True
    timer.start()


class Interrupts:
    """Context in which the first of ``SIGNALS`` only sets ``requested``, so that the loop can end at the next step.

    The process answers it with ``answer``. Outside of the main thread nothing changes, and ``requested`` stays None.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *SCHEDULER_WARNINGS)

    def __init__(self, answer: str = "") -> None:
        self._answer = answer
        self._leaving = False
        self.requested: str | None = None
        """Name of the signal that asked to stop, if one did."""
        self.at_once: str | None = None
        """Reason that a second signal gave; None without one. The run itself hears of a cancelled task alone."""
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        _process.stopped_by = signal.SIGINT
        self._previous = {
            number: signal.signal(number, self._note)
            for number in self.SIGNALS
            if not _is_kept_out(number)
        }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        name, earlier = signal.Signals(number).name, self.requested
        if earlier is None and self._answer:
            _write(f"{name}: {self._answer}")
        # A closed terminal sends SIGHUP twice, once when the terminal ends and once when its shell does; the second is
        # no request to stop at once, and a SIGTERM behind a scheduler's warning is the first one.
        if number in (signal.SIGINT, signal.SIGTERM):
            if earlier is not None and signal.Signals[earlier] not in SCHEDULER_WARNINGS:
                self._stop_at_once(number)
            self.requested = name
        self.requested = self.requested or name

    def _stop_at_once(self, number: int) -> None:
        _process.stopped_by = number
        self.at_once = f"stopped at once by {signal.Signals(number).name}"
        if _process.is_own:
            if self._leaving:
                _leave(interrupted_code())
            self._leaving = True
            leave_within(LEAVE_S, interrupted_code())
        raise KeyboardInterrupt(self.at_once)


def _leave(exit_code: int) -> None:
    """End this process now, without the end of anything that it waits for."""
    _write("ended at once; what did not stop was left")
    os._exit(exit_code)


def _write(text: str) -> None:
    """Write a line for the terminal, below what may stand in its last one; a signal can come within a ``print``."""
    with suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), f"\n{text}\n".encode())


def _is_kept_out(number: signal.Signals) -> bool:
    """Return whether the process is to outlive the signal, as under ``nohup``, or has a use of its own for it."""
    # SIGHUP alone: a shell's background job starts with SIGINT ignored, and still has to be stoppable.
    if number == signal.SIGHUP:
        return signal.getsignal(number) == signal.SIG_IGN
    return number in SCHEDULER_WARNINGS and signal.getsignal(number) != signal.SIG_DFL
