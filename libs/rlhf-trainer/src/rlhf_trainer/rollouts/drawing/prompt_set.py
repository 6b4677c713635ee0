"""The training prompts as samplers see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.task import Task
from rlhf_core.rng import generator_of


class Tasks(Protocol):
    """The training set as the loop sees it."""

    def __len__(self) -> int:
        """Return the number of tasks of an epoch."""
        ...

    @property
    def indices(self) -> NDArray[np.int64]:
        """Indices of all tasks, ascending."""
        ...

    @property
    def returning(self) -> bool:
        """Whether an index is the same prompt in every epoch."""
        ...

    def order(self, epoch: int, seed: int) -> NDArray[np.int64]:
        """Return the indices of the tasks in the order of this epoch."""
        ...

    def task(self, index: int, epoch: int) -> Task:
        """Return the task of an index, with ``uid = (epoch, index, 0, 0)``."""
        ...


class PromptsOfTasks:
    """See ``contracts.PromptSet``: the prompts of a run's tasks."""

    def __init__(self, tasks: Tasks, seed: int) -> None:
        self._tasks = tasks
        self._seed = seed

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def indices(self) -> NDArray[np.int64]:
        return self._tasks.indices

    @property
    def returning(self) -> bool:
        return self._tasks.returning

    def order(self, epoch: int) -> NDArray[np.int64]:
        return self._tasks.order(epoch, self._seed)

    def row(self, index: int) -> Mapping[str, Any]:
        return self._tasks.task(index, 0).row

    def generator(self, *counters: int) -> np.random.Generator:
        return generator_of(self._seed, "prompt sampler", *counters)
