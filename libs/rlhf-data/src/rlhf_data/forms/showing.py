"""The line about each set's form on the terminal, for commands without a run's log and display."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..reading_log import log


@contextmanager
def shown_forms() -> Iterator[None]:
    """Print on stderr how the rows of each set are read that the body opens."""
    handler = logging.StreamHandler(sys.stderr)
    level = log.level
    log.addHandler(handler)
    if log.getEffectiveLevel() > logging.INFO:
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
