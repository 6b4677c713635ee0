"""Rows of one split of an environment: by index where they have a length, else lazily and in order.

A stream that ends begins again, so a generator with an end can be trained on for as long as one without. Of a stream
the last ``KEPT`` rows are kept; an older one is found by reading the stream again from its start.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, cast

from rlhf_core.errors import DataError, RLHFError

from ..arrow_rows import rows_as_written
from ..rows import shown_value
from ..source import Row

KEY = "key"
"""Column of a row that names its task, unique in the split."""
KEPT = 4096
"""Rows of a stream that are kept. Samples of these tasks are under way, or are started again after an interrupt."""


class MadeRows(Protocol):
    """Rows of a split."""

    @property
    def size(self) -> int | None:
        """Number of rows; None for a stream."""

    def row(self, number: int) -> Row:
        """Return a row, checked.

        Raises:
            DataError: it is no row, its key is another row's too, or making it failed.
        """


class CountedRows:
    """Rows that have a length.

    Args:
        where: words for messages: the environment and the split.
        limit: number of rows to use, from the first; None: all.
    """

    def __init__(self, rows: Sequence[Row], where: str, limit: int | None = None) -> None:
        self._rows = rows
        self._where = where
        self._keys: dict[str | int, int] = {}
        size: int = _guarded(where, lambda: len(rows))
        self._size = size if limit is None else min(size, limit)

    @property
    def size(self) -> int:
        return self._size

    def row(self, number: int) -> Row:
        row = _checked(_guarded(self._where, lambda: self._rows[number]), self._where, number)
        if KEY in row:
            _check_unique(self._keys.setdefault(row[KEY], number), number, row[KEY], self._where)
        return row


class StreamedRows:
    """Rows that are read in order, from the start again after their end.

    Args:
        read: function that gives the rows from the start, the same ones at each call.
        where: words for messages: the environment and the split.
    """

    def __init__(self, read: Callable[[], Iterable[Row]], where: str) -> None:
        self._read_rows = read
        self._where = where
        self._kept: OrderedDict[int, Row] = OrderedDict()
        self._keys: dict[str | int, int] = {}
        self._iterator: Iterator[Row] | None = None
        self._next = 0
        self._length: int | None = None

    @property
    def size(self) -> None:
        return None

    def row(self, number: int) -> Row:
        while True:
            at = number if self._length is None else number % self._length
            if at in self._kept:
                return self._kept[at]
            if at < self._next:
                self._iterator = None
            self._read()

    def _read(self) -> None:
        """Keep the next row, or note the length of a stream that has ended."""
        if self._iterator is None:
            self._iterator = _guarded(self._where, lambda: iter(rows_as_written(self._read_rows())))
            self._next = 0
        iterator = self._iterator
        found = _guarded(self._where, lambda: next(iterator, None))
        if found is None:
            if not self._next:
                raise DataError(
                    f"{self._where}: expected at least one task, got none", code="data/no-rows"
                )
            self._length, self._iterator = self._next, None
            return
        row = _checked(found, self._where, self._next)
        if KEY in row:
            first = self._keys.setdefault(row[KEY], self._next)
            _check_unique(first, self._next, row[KEY], self._where)
        self._kept[self._next] = row
        self._next += 1
        while len(self._kept) > KEPT:
            forgotten = self._kept.popitem(last=False)[1]
            self._keys.pop(forgotten.get(KEY, ""), None)


def made_rows(read: Callable[[], Iterable[Row]], where: str, limit: int | None = None) -> MadeRows:
    """Return the rows of a split.

    Args:
        read: function that gives the rows from the start, the same ones at each call.
        where: words for messages: the environment and the split.
        limit: number of rows to use, from the first: a stream then has a length too. None: all.

    Raises:
        KeyError: there is no such split.
        DataError: it is no collection of rows, or has none.
    """
    rows: Any = rows_as_written(_guarded(where, read, KeyError))
    if not isinstance(rows, Iterable) or isinstance(rows, Mapping | str | bytes):
        raise DataError(
            f"{where}: expected a sequence or an iterable of rows, got {shown_value(rows)}",
            code="data/not-rows",
        )
    if hasattr(rows, "__len__") and hasattr(rows, "__getitem__"):
        found: MadeRows = CountedRows(cast("Sequence[Row]", rows), where, limit)
    else:
        # A generator's code begins to run here, and a split that is not there shows here.
        first = _guarded(where, lambda: list(islice(rows, limit or 1)), KeyError)
        found = StreamedRows(read, where) if first and limit is None else CountedRows(first, where)
    if found.size == 0:
        raise DataError(f"{where}: expected at least one task, got none", code="data/no-rows")
    return found


def _checked(row: Any, where: str, number: int) -> Row:
    """Return a row if it is one."""
    if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
        raise DataError(
            f"{where}, task {number}: expected a row, a mapping from names to values; got {shown_value(row)}",
            code="data/row-no-mapping",
        )
    key = row.get(KEY, "")
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise DataError(
            f"{where}, task {number}: expected text or a whole number as its key, got {shown_value(key)}",
            code="data/task-key",
        )
    return row


def _check_unique(first: int, number: int, key: str | int, where: str) -> None:
    if first != number:
        raise DataError(
            f"{where}: tasks {first} and {number} both have the key {key!r}; expected a different key for each",
            code="data/repeated-key",
        )


def _guarded(where: str, read: Any, passed: type[Exception] = RLHFError) -> Any:
    """Return what the environment's code gives.

    Args:
        passed: type of exceptions that stay as they are, besides errors of this project.
    """
    try:
        return read()
    except (RLHFError, passed):
        raise
    except Exception as error:
        raise DataError(
            f"{where}: making them raised {type(error).__name__}: {error}",
            code="environment/tasks-raised",
        ) from error
