"""Tasks of two evaluations, side by side; refused where they are not the same tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_core import ConfigError

from .results import EMPTY, Cell, EvaluationResults, TaskRewards

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTasks:
    """Tasks of one set at one temperature, P of which both models have rewards of."""

    set: str
    temperature: float
    names: tuple[str, ...]
    first: tuple[NDArray[np.float64], ...]
    """Rewards of the first model's episodes, by task."""
    second: tuple[NDArray[np.float64], ...]
    unscored: int
    """Tasks that are left out, because a model has no reward of them."""

    def means(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the tasks' mean rewards (P,) of both models."""
        return _means(self.first), _means(self.second)

    def pass_rates(self, threshold: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the tasks' shares of passed episodes (P,) of both models; both sides are compared in float32."""
        limit = np.float32(threshold)
        return (
            _means([(rewards >= limit).astype(np.float64) for rewards in self.first]),
            _means([(rewards >= limit).astype(np.float64) for rewards in self.second]),
        )


def paired(first: EvaluationResults, second: EvaluationResults) -> Iterator[PairedTasks]:
    """Yield the tasks of each set at each temperature.

    Raises:
        ConfigError: the evaluations have other sets, temperatures or tasks; or tasks that are seeds, and another seed.
    """
    if first.cells.keys() != second.cells.keys():
        raise ConfigError(
            f"expected two evaluations of the same sets at the same temperatures; {first.folder} has "
            f"{_named(first.cells)}, {second.folder} has {_named(second.cells)}. Evaluate one of them on what the "
            "other has.",
            code="eval/other-sets",
        )
    for (name, temperature), tasks in first.cells.items():
        others = second.cells[name, temperature]
        where = f"{name} at temperature {temperature:g}"
        _check_names(where, first, second, (name, temperature))
        for task, rewards in tasks.items():
            _check_same(where, task, (rewards, others[task]), first, second)
        both = [task for task in tasks if tasks[task].rewards and others[task].rewards]
        if not both:
            raise ConfigError(
                f"{where}: expected tasks with rewards in both evaluations; there is none",
                code="eval/no-rewards",
            )
        yield PairedTasks(
            set=name,
            temperature=temperature,
            names=tuple(both),
            first=tuple(np.array(tasks[task].rewards) for task in both),
            second=tuple(np.array(others[task].rewards) for task in both),
            unscored=len(tasks) - len(both),
        )


def _check_names(
    where: str, first: EvaluationResults, second: EvaluationResults, cell: Cell
) -> None:
    for one, other in ((first, second), (second, first)):
        only = [task for task in one.cells[cell] if task not in other.cells[cell]]
        if only:
            raise ConfigError(
                f"{where}: expected the same tasks in both evaluations; {len(only)} of {one.folder} are not in "
                f"{other.folder}: {_few(only)}. Evaluate both on the same data, with the same --data.max_samples.",
                code="eval/other-tasks",
            )


def _check_same(
    where: str,
    task: str,
    rewards: tuple[TaskRewards, TaskRewards],
    first: EvaluationResults,
    second: EvaluationResults,
) -> None:
    one, other = rewards
    if one.digest != other.digest:
        raise ConfigError(
            f"{where}: expected the same tasks in both evaluations; the row of task {task} is another one in "
            f"{second.folder} than in {first.folder}. Evaluate both on the same data.",
            code="eval/other-rows",
        )
    if one.digest == EMPTY and first.seed != second.seed:
        raise ConfigError(
            f"{where}: its tasks come from the seed, which is {first.seed} in {first.folder} and {second.seed} in "
            f"{second.folder}. Evaluate both with the same --seed.",
            code="eval/other-seed",
        )


def _means(rewards: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.array([float(each.mean()) for each in rewards])


def _named(cells: Iterable[Cell]) -> str:
    return ", ".join(f"{name} at {temperature:g}" for name, temperature in cells) or "nothing"


def _few(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
