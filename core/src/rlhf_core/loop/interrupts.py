"""Ctrl-C, SIGTERM and SIGHUP: the step is finished, a checkpoint is saved, and the run ends.

A second Ctrl-C or SIGTERM ends the run at once. SIGHUP comes when the run's terminal is closed, and from schedulers.

Python hands signals to the main thread alone. In another thread nothing is caught, and whoever started the run there
passes requests on (``control``).
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Context in which the first of ``SIGNALS`` only sets ``requested``, so that the loop can end at the next step.

    Outside of the main thread it changes nothing, and ``requested`` stays None.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.requested: str | None = None
        """Name of the signal that asked to stop, if one did."""
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._previous = {
            number: signal.signal(number, self._note)
            for number in self.SIGNALS
            if not _is_kept_out(number)
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested is None:
            self.requested = signal.Signals(number).name
        elif number != signal.SIGHUP:
            # A closed terminal sends SIGHUP twice, once when the terminal ends and once when its shell does; the second
            # is no request to stop at once.
            raise KeyboardInterrupt


def _is_kept_out(number: signal.Signals) -> bool:
    """Return whether the process was started to outlive the signal, as ``nohup`` does."""
    # SIGHUP alone: a shell's background job starts with SIGINT ignored, and still has to be stoppable.
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN
