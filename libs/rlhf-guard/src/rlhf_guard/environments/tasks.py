"""Tasks of an environment that runs elsewhere, read in pages by a thread of their own, as the contract reads them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

from rlhf_core.errors import DataError

from .connection import Connection, RequestFailed
from .host import EnvironmentHost
from .messages import Plain

PAGE_ROWS = 256
"""Rows that are asked for at a time."""

ResultT = TypeVar("ResultT")
Row = Mapping[str, Any]


class IsolatedTasks:
    """The tasks of an environment that runs elsewhere. Its worker plays no episodes. Call ``close`` last.

    Args:
        host: a host of its own, which is used in no other thread.
    """

    def __init__(self, host: EnvironmentHost) -> None:
        self._host = host
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"tasks of {host.name}", daemon=True
        )
        self._thread.start()
        self._connection: Connection | None = None

    def makes_tasks(self) -> bool:
        """Return whether the environment makes tasks of its own."""
        return self._call("tasks", split="train").get("makes_tasks") is True

    def tasks(self, split: str) -> Sequence[Row] | SplitRows:
        """Return the tasks of a split.

        Raises:
            KeyError: there is no such split.
            DataError: they cannot be made.
        """
        described = self._call("tasks", split=split)
        if described.get("has_split") is not True:
            raise KeyError(split)
        length = described.get("length")
        rows = SplitRows(self, split)
        return IndexedRows(rows, length) if isinstance(length, int) else rows

    def page(self, split: str, start: int) -> list[Row]:
        """Return rows from a position on; none when the split ends there.

        Raises:
            DataError: they cannot be made.
        """
        rows = self._call("rows", split=split, start=start, count=PAGE_ROWS).get("rows")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(
                f"environment {self._host.name}: expected tasks as rows, got something else",
                code="environment/tasks-failed",
            )
        return rows

    async def close(self) -> None:
        """End the worker and the thread."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._thread.is_alive():
            self._within(self._host.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _call(self, op: str, **fields: Any) -> Plain:
        return self._within(self._answer(op, **fields))

    async def _answer(self, op: str, **fields: Any) -> Plain:
        connection, label = await self._host.connection()
        try:
            return await connection.call(op, self._host.options.step_timeout_s, **fields)
        except RequestFailed as error:
            lines = "".join(f"\n    {line}" for line in error.problem.where)
            raise DataError(
                f"tasks of {self._host.name} ({self._host.origin}), {label}: it {error.problem.text}{lines}",
                code="environment/tasks-failed",
            ) from error

    def _within(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class SplitRows:
    """Rows of a split that has no length, read from its start by each iterator."""

    def __init__(self, source: IsolatedTasks, split: str) -> None:
        self._source = source
        self._split = split

    def __iter__(self) -> Iterator[Row]:
        position = 0
        while page := self.page(position):
            yield from page
            position += len(page)

    def page(self, start: int) -> list[Row]:
        """Return rows from a position on."""
        return self._source.page(self._split, start)


class IndexedRows(Sequence[Row]):
    """Rows of a split that has a length. The page around the last index that was read is kept."""

    def __init__(self, rows: SplitRows, length: int) -> None:
        self._rows = rows
        self._length = length
        self._start = 0
        self._page: list[Row] = []

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._length))]
        at = index + self._length if index < 0 else index
        if not 0 <= at < self._length:
            raise IndexError(f"task {index} of {self._length}")
        if not self._start <= at < self._start + len(self._page):
            # Random access reads a page for each row, so pages begin at multiples of their size and may be met again.
            self._start = at - at % PAGE_ROWS
            self._page = self._rows.page(self._start)
            if at >= self._start + len(self._page):  # A page of large rows is shorter.
                self._start, self._page = at, self._rows.page(at)
            if not self._page:
                raise DataError(
                    f"expected {self._length} tasks, got {at}", code="environment/tasks-failed"
                )
        return self._page[at - self._start]
