"""Lines that say what takes long: weights that are read, merged or written keep a terminal silent for minutes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

FIRST_S = 10.0
"""Seconds without a line; what most models need is over by then."""
EVERY_S = 30.0
"""Seconds between two lines."""


@contextmanager
def log_if_long(doing: str) -> Iterator[None]:
    """Say what the body does and for how long, after ``FIRST_S`` seconds and then each ``EVERY_S``.

    The lines are warnings, so that commands without a run's log show them, too. A thread of its own writes them, since
    the body is one call of a library.

    Args:
        doing: what is done and with what, such as ``reading the weights of model PATH``.
    """
    begin, over = time.monotonic(), threading.Event()

    def report() -> None:
        wait = FIRST_S
        while not over.wait(wait):
            log.warning("%s: %.0f s so far", doing, time.monotonic() - begin)
            wait = EVERY_S

    reporter = threading.Thread(target=report, name="log_if_long", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()


told_if_long = log_if_long
"""Old name, for one release."""
