"""Tasks of a run without data: those that its environments make, and empty ones for environments that make none.

A part with a length gives each of its rows at most once an epoch. A part without one, a stream or an environment that
makes no tasks, gives as many tasks an epoch as the mix wants, and goes on in the next epoch: row ``epoch * count + k``
is the k-th of an epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.task import Task, Uid

from ..mixing import epoch_order, interleaved
from ..source import Row
from .prompts import MadePrompt, PromptReader
from .rows import MadeRows
from .source_rows import SourceRows

MIXED = 1000
"""Smallest number of tasks of an epoch of several endless parts, so that their shares are right to a thousandth."""
LONGEST = 1_000_000
"""Largest number of tasks of an epoch of a mix with an endless part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePart:
    """Tasks of one environment."""

    environment: str
    """Name in the run; empty for tasks of no environment, or of the only one."""
    share: float
    rows: MadeRows | None = None
    """None: its tasks are empty, and differ in their seeds."""
    dataset: str = ""
    """Name by which results are grouped; empty: the environment's."""

    @property
    def size(self) -> int | None:
        """Number of different tasks; None: there is no end to them."""
        return None if self.rows is None else self.rows.size

    def place(self, number: int) -> str:
        """Return the place of a row for messages."""
        if isinstance(self.rows, SourceRows):
            return self.rows.where(number)
        return f"{self.environment}, task {number}"


class MadeTasks:
    """Tasks of one environment or several, in an order that is a function of seed and epoch.

    Args:
        count: tasks of an epoch, where no part has a length.
        shuffle: whether the rows of parts with a length come in an order of the seed.
        prompts: reader of prompts in rows; None: rows have none.
    """

    def __init__(
        self,
        parts: Sequence[MadePart],
        count: int,
        *,
        shuffle: bool = False,
        prompts: PromptReader | None = None,
    ) -> None:
        self._parts = parts
        self._shuffle = shuffle
        self._prompts = prompts
        self._counts = mixed_counts(parts, count)
        self._sizes = [
            count if part.size is None else part.size
            for part, count in zip(parts, self._counts, strict=True)
        ]
        self._ends = list(accumulate(self._sizes))

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def endless(self) -> tuple[str, ...]:
        """Environments without which the tasks of an epoch have no number of their own: all of them, where none has an
        end to its tasks; empty where one has."""
        parts = [part for part in self._parts if part.size is None]
        names = tuple(part.environment or part.dataset for part in parts)
        return names if len(names) == len(self._parts) else ()

    @property
    def indices(self) -> NDArray[np.int64]:
        return np.arange(self._ends[-1], dtype=np.int64)

    @property
    def returning(self) -> bool:
        """Whether an index is the same task in every epoch, since each part has a length."""
        return all(part.size is not None for part in self._parts)

    def order(self, epoch: int, seed: int) -> NDArray[np.int64]:
        """Return the indices of an epoch's tasks in their order, each once. Tasks without a length come in theirs."""
        if len(self._parts) == 1:
            shuffle = self._shuffle and self._parts[0].size is not None
            return epoch_order(self._sizes, (), epoch=epoch, seed=seed, shuffle=shuffle)
        order = interleaved(
            self._sizes, self._counts, epoch=epoch, seed=seed, shuffle=self._shuffle
        )
        for part, end, size in zip(self._parts, self._ends, self._sizes, strict=True):
            if part.size is None:
                among = (order >= end - size) & (order < end)
                order[among] = np.sort(order[among])
        return order

    def task(self, index: int, epoch: int) -> Task:
        """Return the task with ``uid = (epoch, index, 0, 0)``.

        Raises:
            IndexError: there is no such task.
            DataError: its row cannot be made or used.
        """
        at = bisect_right(self._ends, index)
        if index < 0 or at == len(self._parts):
            raise IndexError(f"no task has index {index}")
        part = self._parts[at]
        position = index - (self._ends[at] - self._sizes[at])
        row: Row = {}
        prompt = MadePrompt(row)
        if part.rows is not None:
            number = position if part.size is not None else epoch * self._counts[at] + position
            row = part.rows.row(number)
            if self._prompts is not None and self._prompts.has_prompt(row):
                prompt = self._prompts.read(row, part.place(number))
                row = prompt.row
        return Task(
            uid=Uid(epoch, index),
            prompt_ids=prompt.token_ids,
            messages=prompt.messages,
            row=row,
            dataset=part.dataset or part.environment or "environment",
            environment=part.environment,
            media=prompt.media,
        )


def mixed_counts(parts: Sequence[MadePart], count: int) -> list[int]:
    """Return the number of tasks that each part gives to an epoch.

    Of several, an epoch is the longest mix with their shares that repeats no row, see ``mixing.epoch_counts``.
    """
    if len(parts) == 1:
        return [count if parts[0].size is None else parts[0].size]
    whole = [part.size / part.share for part in parts if part.size is not None]
    if whole:
        total = min(whole)
        if any(part.size is None for part in parts):
            total = min(total, LONGEST)
    else:
        total = count * -(-MIXED // count)
    counts = [max(1, round(part.share * total)) for part in parts]
    return [
        wanted if part.size is None else min(part.size, wanted)
        for part, wanted in zip(parts, counts, strict=True)
    ]
