"""The number of tokens that the device samples between two looks of the host."""

from __future__ import annotations

FEWEST = 4
MOST = 32


class BurstLength:
    """Adapts the number of tokens of a burst to how often rows finish.

    A look costs the host about as long as a tenth of a step of a small model; a row that finishes in a burst stands
    still to its end, on average for half of it. So a burst is doubled while nothing finishes, and halved when more
    than one row in ``1 / SHARE`` did.
    """

    SHARE = 1 / 16

    def __init__(self) -> None:
        self._length = FEWEST

    def next(self, longest: int) -> int:
        """Return the length of the next burst: at least 1, at most what the longest row may still write."""
        return max(1, min(self._length, longest))

    def seen(self, finished: int, rows: int) -> None:
        """Take note of how many of the rows of a burst finished in it."""
        if not finished:
            self._length = min(MOST, 2 * self._length)
        elif finished > self.SHARE * rows:
            self._length = max(FEWEST, self._length // 2)
