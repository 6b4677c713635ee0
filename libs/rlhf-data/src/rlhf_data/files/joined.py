"""The files of a pattern as one set: their rows, one file after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from ..source import Row, Source, Unreadable


class JoinedFiles:
    """Source of the rows of several sources in their order."""

    def __init__(self, parts: Sequence[Source], name: str) -> None:
        self.name = name
        self._parts = parts
        self._starts = list(accumulate(map(len, parts), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def row(self, index: int) -> Row:
        """Return the row of an index.

        Raises:
            DataError: the row cannot be read.
        """
        part, at = self._place(index)
        return part.row(at)

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[Row | Unreadable]:
        """Yield all rows in order."""
        for part in self._parts:
            yield from part.scan(columns)

    def where(self, index: int) -> str:
        """Return the place of a row in its file."""
        part, at = self._place(index)
        return part.where(at)

    def _place(self, index: int) -> tuple[Source, int]:
        number = bisect_right(self._starts, index) - 1
        return self._parts[number], index - self._starts[number]
