"""The order in which prompts are drawn: a function of how many were taken, so that a resumed run takes the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..batch.task import Task


class Tasks(Protocol):
    """The training set as the loop sees it."""

    def __len__(self) -> int: ...

    def order(self, epoch: int, seed: int) -> NDArray[np.int64]:
        """Return the indices of the tasks in the order of this epoch."""
        ...

    def task(self, index: int, epoch: int) -> Task:
        """Return the task of an index, with ``uid = (epoch, index, 0, 0)``."""
        ...


class Cursor:
    """A position in the endless sequence of epochs.

    Args:
        epochs: stop after this many passes; None goes on for ever.
        taken: number of tasks taken before, from a checkpoint.
    """

    def __init__(self, tasks: Tasks, seed: int, *, epochs: int | None, taken: int = 0) -> None:
        self._tasks = tasks
        self._seed = seed
        self._epochs = epochs
        self._order: tuple[int, NDArray[np.int64]] | None = None
        self.taken = taken

    def take(self, count: int) -> list[Task]:
        """Return the next ``count`` tasks, or the rest of the last epoch."""
        return [task for _, task in zip(range(count), self._rest(), strict=False)]

    def _rest(self) -> Iterator[Task]:
        while True:
            epoch, position = divmod(self.taken, len(self._tasks))
            if self._epochs is not None and epoch >= self._epochs:
                return
            self.taken += 1
            yield self._tasks.task(int(self._order_of(epoch)[position]), epoch)

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, self._tasks.order(epoch, self._seed)
        return self._order[1]
