"""The end of a benchmark by SIGINT or SIGTERM, also of one in the background, for which a shell ignores SIGINT."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from marked_processes import marked

ENDING_S = 10.0


class ToldToEnd(BaseException):
    """Raised in the main thread by the first of the signals, so that what is under way is left.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def raises_when_told_to_end() -> Iterator[None]:
    """Return a context in which the first SIGINT or SIGTERM raises ``ToldToEnd``; further ones are ignored, so that
    nothing stays behind."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def end(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise ToldToEnd(number)

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def kill_marked(variable: str, folder: str) -> None:
    """Kill all processes that inherited a variable with this folder, and those that they start meanwhile."""
    deadline = time.monotonic() + ENDING_S
    while (alive := marked(variable, folder)) and time.monotonic() < deadline:
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended by itself
        time.sleep(0.05)
