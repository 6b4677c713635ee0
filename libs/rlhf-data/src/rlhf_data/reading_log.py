"""The log of what reading finds out about sets of rows. Commands without a run's log show it, too."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


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
