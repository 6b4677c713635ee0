"""Tasks that an environment makes, answered in pages: by index where it gives a sequence, else in their order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any

from rlhf_core.contracts.environment import Environment, MakesTasks
from rlhf_core.problem import shown

from ..processes import marked_json
from .messages import MessageError, Plain, WrongReturn, whole

MAX_PAGE_BYTES = 8 * 2**20
"""Number of bytes after which a page of rows ends, whatever count was asked for."""
MAX_PAGE_ROWS = 4096
MAX_PAGE_S = 2.0
"""Time after which a page ends: an environment may take a while to make each row."""


class TaskPages:
    """Splits of one environment, opened as they are asked for.

    Args:
        make: makes the environment; the one whose tasks are read plays no episode.
    """

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._make = make
        self._environment: Environment | None = None
        self._splits: dict[str, _Split] = {}

    async def describe(self, request: Plain) -> Plain:
        """Answer ``{"split"}``: whether the environment makes tasks and has the split, and the split's length, if it
        has one."""
        environment = self._opened()
        if not isinstance(environment, MakesTasks):
            return {"makes_tasks": False, "has_split": False, "length": None}
        try:
            split = self._split(_name(request))
        except KeyError:
            return {"makes_tasks": True, "has_split": False, "length": None}
        return {"makes_tasks": True, "has_split": True, "length": split.length}

    async def rows(self, request: Plain) -> Plain:
        """Answer ``{"split", "start", "count"}``: rows from a position, at least one unless the split ends there."""
        start, count = whole(request, "start"), whole(request, "count")
        if start < 0 or not 0 < count <= MAX_PAGE_ROWS:
            raise MessageError(
                f"rows {start} to {start + count}; expected 1 to {MAX_PAGE_ROWS} rows from 0"
            )
        split = self._split(_name(request))
        page, num_bytes, end = [], 0, time.monotonic() + MAX_PAGE_S
        for row in islice(split.rows_from(start), count):
            if not isinstance(row, Mapping):
                raise WrongReturn(f"gave {shown(row)} as a task; expected a dict")
            page.append(dict(row))
            num_bytes += len(marked_json.encode(row))
            if num_bytes > MAX_PAGE_BYTES or time.monotonic() >= end:
                break
        split.position = start + len(page)
        return {"rows": page}

    def _opened(self) -> Environment:
        if self._environment is None:
            self._environment = self._make()
        return self._environment

    def _split(self, name: str) -> _Split:
        if name not in self._splits:
            environment = self._opened()
            if not isinstance(environment, MakesTasks):
                raise MessageError("this environment makes no tasks")
            self._splits[name] = _Split(partial(environment.tasks, name))
        return self._splits[name]


class _Split:
    """Tasks of one split, and how far they have been read.

    Raises:
        KeyError: the environment has no such split. A generator says so only when its first row is asked for.
    """

    def __init__(self, read: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        self._read = read
        tasks: Any = read()
        self._tasks = tasks
        self.length: int | None = None
        """Number of rows, if the tasks are a sequence."""
        self.position = 0
        """Row at which the iterator stands."""
        self._iterator: Iterator[Any] = iter(())
        if hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__"):
            self.length = len(tasks)
        else:
            rows = iter(tasks)
            self._iterator = chain(list(islice(rows, 1)), rows)

    def rows_from(self, start: int) -> Iterator[Any]:
        """Yield the rows from a position on. A split without a length is read again if ``start`` lies behind."""
        if self.length is not None:
            yield from (self._tasks[index] for index in range(start, self.length))
            return
        if start < self.position:
            # The environment is asked again, since a generator can be read only once.
            self._iterator, self.position = iter(self._read()), 0
        yield from islice(self._iterator, start - self.position, None)


def _name(request: Plain) -> str:
    name = request.get("split")
    if not isinstance(name, str):
        raise MessageError(f"a split named {name!r:.60}; expected text")
    return name
