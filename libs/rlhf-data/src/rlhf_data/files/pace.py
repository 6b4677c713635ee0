"""Lines of the log that say how far a long reading of rows is: tokens of a large set take minutes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from ..reading_log import log

ItemT = TypeVar("ItemT")

FIRST_S = 10.0
"""Seconds without a line; most sets are read by then."""
EVERY_S = 30.0
"""Seconds between two lines."""


def with_progress(rows: Iterable[ItemT], total: int, name: str) -> Iterator[ItemT]:
    """Yield the rows, and log how many of ``total`` were read: after ``FIRST_S``, and then each ``EVERY_S``.

    The lines are in ``reading_log``.

    Args:
        name: the set's name.
    """
    begin = time.monotonic()
    due = begin + FIRST_S
    for count, row in enumerate(rows):
        now = time.monotonic()
        if now >= due:
            log.info(
                "%s: reading rows and making tokens of them, %s of %s so far, in %.0f s",
                name,
                f"{count:,}",
                f"{total:,}",
                now - begin,
            )
            due = now + EVERY_S
        yield row
