"""Rows of a data source: read once in order, found again by number, and compared at every further reading.

A source that ends begins again, so its rows come in passes. A source may have grown meanwhile, so passes differ in
length, and a resumed run cannot work them out again: where each began is part of the state.
"""

from __future__ import annotations

import hashlib
import json
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.called import asking
from rlhf_core.contracts.data.source import DataSource
from rlhf_core.errors import DataError, PluginError
from rlhf_core.storage.writing import written_whole

from ..arrow_rows import rows_as_written
from ..source import Row

log = logging.getLogger(__name__)

KEPT = 4096
"""Rows that are kept, and whose digests are: their samples are under way, or are started again after an interrupt."""
SAVED = 1024
"""Digests of the last rows that a checkpoint holds."""


class SourceRows:
    """See ``MadeRows``: rows without an end.

    Args:
        source: the source as its plugin made it.
        who: words for messages: option, name, distribution and version.
    """

    def __init__(self, source: DataSource, who: str) -> None:
        self._source = source
        self._who = who
        self._starts = [0]
        """Number of the first row of each pass."""
        self._kept: OrderedDict[int, Row] = OrderedDict()
        self._digests: OrderedDict[int, str] = OrderedDict()
        """Digest of the source's rows that were read last, by their number in the source."""
        self._iterator: Iterator[Row] | None = None
        self._next = 0
        """Number in the source of the iterator's next row."""

    @property
    def size(self) -> None:
        return None

    def row(self, number: int) -> Row:
        """Return the row of a number that goes on from pass to pass.

        Raises:
            DataError: it cannot be read, is no row, or has changed since it was read before.
            PluginError: the source's code failed.
        """
        if number not in self._kept:
            self._kept[number] = self._found(number)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return self._kept[number]

    def until_end(self, count: int) -> Iterator[Row]:
        """Yield the first rows, at most ``count``, and none again where the source ends before.

        Raises:
            DataError: as from ``row``.
            PluginError: as from ``row``.
        """
        for at in range(count):
            row = self._read(at)
            if row is None:
                return
            yield row

    def where(self, number: int) -> str:
        """Return the place of a row for messages."""
        return self._where(self._in_source(number))

    def state_dict(self) -> dict[str, Any]:
        """Return where each pass began, and digests of the rows that were read last."""
        last = list(self._digests.items())[-SAVED:]
        return {"starts": self._starts, "digests": [list(pair) for pair in last]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, once the rows that it knows were read again.

        Raises:
            DataError: one of them has changed.
        """
        self._starts = list(state["starts"])
        self._digests = OrderedDict((number, digest) for number, digest in state["digests"])
        self._kept.clear()
        self._iterator = None
        for number in list(self._digests):
            if self._read(number) is None:
                raise DataError(
                    f"{self._where(number)}: the row of {self._who} no longer exists, but the run has read it. "
                    f"{_FIX}",
                    code="data/lost-rows",
                )

    def _found(self, number: int) -> Row:
        while True:
            at = self._in_source(number)
            row = self._read(at)
            if row is not None:
                return row
            length = self._length(at)
            if not length:
                raise DataError(
                    f"{self._who}: expected at least one row, got none", code="data/no-rows"
                )
            if length > at:
                raise PluginError(
                    f"{self._who}: rows({at}) gave nothing, but rows(0) gives {length} rows; expected the rest of them",
                    code="plugin/source-stopped",
                )
            self._starts.append(self._starts[-1] + length)

    def _in_source(self, number: int) -> int:
        return number - self._starts[bisect_right(self._starts, number) - 1]

    def _read(self, at: int) -> Row | None:
        """Return a row by its number in the source; None: there are fewer."""
        if self._iterator is None or at != self._next:
            self._iterator = iter(self._guarded(lambda: rows_as_written(self._source.rows(at))))
        iterator = self._iterator
        row: Row | None = self._guarded(lambda: next(iterator, None))
        if row is None:
            self._iterator = None
            return None
        self._next = at + 1
        self._check(row, at)
        return row

    def _length(self, at: int) -> int:
        """Return the number of rows of a source that has no row ``at``; usually it has the one before."""
        if at == self._next:
            return at
        return sum(1 for _ in self._guarded(lambda: list(self._source.rows(0))))

    def _check(self, row: Any, at: int) -> None:
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise DataError(
                f"{self._where(at)}: expected a row of {self._who}, a mapping from names to values; got {row!r:.60} "
                f"({type(row).__name__})",
                code="data/row-no-mapping",
            )
        digest = _digest_of(row)
        before = self._digests.setdefault(at, digest)
        if before != digest:
            raise DataError(
                f"{self._where(at)}: the row of {self._who} was changed since the run read it. {_FIX}",
                code="data/changed-rows",
            )
        self._digests.move_to_end(at)
        while len(self._digests) > KEPT:
            self._digests.popitem(last=False)

    def _where(self, at: int) -> str:
        return str(self._guarded(lambda: self._source.where(at)))

    def _guarded(self, read: Any) -> Any:
        with asking(f"{self._who}: it"):
            return read()


_FIX = "Put the rows back as they were, or start a new run in another --output. New rows belong behind the others."


def _digest_of(row: Row) -> str:
    text = json.dumps(row, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def draw_rows(source: DataSource, who: str, count: int, path: Path) -> int:
    """Write the first rows of a source as JSON Lines, a row of the source on each line, and return their number.

    It is for commands that go over their rows more than once, in an order of a seed. No more than one row is in memory,
    and what was drawn is what a resumed run reads, whatever the source gives by then.

    Args:
        who: words for messages: option, name, distribution and version.
        count: largest number of rows; fewer where the source ends before.
        path: the file, which is there once all rows are in it.

    Raises:
        DataError: a row cannot be read, or has a value that JSON does not carry; or there is none.
        PluginError: the source's code failed.
        StorageError: the file could not be written.
    """
    rows, drawn = SourceRows(source, who), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        for row in rows.until_end(count):
            try:
                file.write(json.dumps(row).encode() + b"\n")
            except (TypeError, ValueError, RecursionError) as error:
                raise DataError(
                    f"{rows.where(drawn)}: expected values that JSON carries in a row of {who}; {error}",
                    code="data/not-json",
                ) from error
            drawn += 1
        if not drawn:
            raise DataError(f"{who}: expected at least one row, got none", code="data/no-rows")
    log.info("data.source: the first %d rows of %s are in %s", drawn, who, path)
    return drawn
