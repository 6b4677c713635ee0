"""A comparison as numbers and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..evaluate.table import with_interval
from ..statistics.intervals import Estimate, mean_estimate, rate_estimate
from ..statistics.paired import PairedComparison, compare_tasks
from .pairing import PairedTasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One quantity of two models."""

    first: Estimate
    second: Estimate
    paired: PairedComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class SetComparison:
    """Two models on one set at one temperature."""

    set: str
    temperature: float
    tasks: int
    unscored: int
    """Tasks that are left out, because a model has no reward of them."""
    reward: Compared
    passed: Compared
    """Shares of passed episodes."""
    threshold: float


def compared(tasks: PairedTasks, *, threshold: float, level: float, seed: int) -> SetComparison:
    """Return how the second model does against the first.

    Args:
        threshold: reward from which an episode passes.
        level: confidence of the intervals.
        seed: of the sign-flip test.
    """

    first, second = tasks.means()
    passed, others = tasks.pass_rates(threshold)
    each = np.arange(len(first))
    return SetComparison(
        set=tasks.set,
        temperature=tasks.temperature,
        tasks=len(tasks.names),
        unscored=tasks.unscored,
        reward=Compared(
            first=mean_estimate(first, each, level),
            second=mean_estimate(second, each, level),
            paired=compare_tasks(first, second, level=level, seed=seed),
        ),
        passed=Compared(
            first=rate_estimate(passed, _episodes(tasks.first), level),
            second=rate_estimate(others, _episodes(tasks.second), level),
            paired=compare_tasks(passed, others, level=level, seed=seed),
        ),
        threshold=threshold,
    )


def comparison_block(comparison: SetComparison) -> str:
    """Return a comparison as text, with names in one column."""
    rows = [("tasks", str(comparison.tasks))]
    if comparison.unscored:
        rows.append(("tasks without a reward", str(comparison.unscored)))
    rows += _rows("reward", comparison.reward)
    rows += _rows(f"passed (reward >= {comparison.threshold:g})", comparison.passed)
    width = max(len(name) for name, _ in rows)
    head = f"{comparison.set}, temperature {comparison.temperature:g}"
    return "\n".join([head, *(f"  {name:<{width}}  {value}" for name, value in rows)])


def difference_lines(tasks: PairedTasks) -> str:
    """Return a table of the tasks on which the models differ, those first on which the second gains most."""
    first, second = tasks.means()
    order = np.argsort(first - second, kind="stable")
    moved = [int(index) for index in order if first[index] != second[index]]
    rows: list[Sequence[str]] = [("task", "A", "B", "B - A")]
    for at in moved:
        numbers = (first[at], second[at], second[at] - first[at])
        rows.append((tasks.names[at], *(f"{number:.4g}" for number in numbers)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _episodes(rewards: Sequence[NDArray[np.float64]]) -> int:
    """Return the number of episodes that every task has."""
    return min(map(len, rewards))


def _rows(name: str, values: Compared) -> Iterator[tuple[str, str]]:
    paired = values.paired
    yield f"{name}: A", with_interval(values.first)
    yield "  B", with_interval(values.second)
    yield "  B - A", f"{with_interval(paired.difference)}, p = {paired.p_value:.3g} (sign flips)"
    yield (
        "  tasks that B wins, loses, ties",
        f"{paired.wins}, {paired.losses}, {paired.ties}, p = {paired.sign_p_value:.3g} (sign test)",
    )
