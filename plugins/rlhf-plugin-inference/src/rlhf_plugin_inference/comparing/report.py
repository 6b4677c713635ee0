"""A comparison as numbers and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_cli.tables import Cell, Column, Form, Table

from ..evaluate.table import interval_cell, interval_column, with_interval
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


def comparison_table(comparisons: Sequence[SetComparison]) -> Table:
    """Return a row for each set at each temperature and quantity."""
    columns = [
        Column("set"),
        Column("T", key="temperature"),
        Column("quantity"),
        Column("tasks"),
        Column("tasks without a reward", key="unscored"),
        interval_column("A"),
        interval_column("B"),
        interval_column("B - A", key="difference"),
        Column("p (sign flips)", key="p_value"),
        Column("B wins", key="wins"),
        Column("B loses", key="losses"),
        Column("ties"),
        Column("p (sign test)", key="sign_p_value"),
    ]
    return Table(columns, [row for each in comparisons for row in _table_rows(each)])


def difference_table(pairs: Sequence[PairedTasks]) -> Table:
    """Return a row for each task on which the models differ, of each set at each temperature those first on which the
    second gains most."""
    head = [Column("set"), Column("T", key="temperature"), Column("task")]
    head += [Column("A"), Column("B"), Column("B - A", key="difference")]
    return Table(head, [row for tasks in pairs for row in _difference_rows(tasks)])


def difference_lines(tasks: PairedTasks) -> str:
    """Return a table of one set's tasks as text; see ``difference_table``."""
    head = [Column("task"), Column("A"), Column("B"), Column("B - A")]
    return Table(head, [row[2:] for row in _difference_rows(tasks)]).written(Form.TEXT)


def _table_rows(comparison: SetComparison) -> Iterator[Sequence[Cell]]:
    for name, values in (
        ("reward", comparison.reward),
        (f"passed (reward >= {comparison.threshold:g})", comparison.passed),
    ):
        paired = values.paired
        yield (
            comparison.set,
            comparison.temperature,
            name,
            comparison.tasks,
            comparison.unscored,
            interval_cell(values.first),
            interval_cell(values.second),
            interval_cell(paired.difference),
            paired.p_value,
            paired.wins,
            paired.losses,
            paired.ties,
            paired.sign_p_value,
        )


def _difference_rows(tasks: PairedTasks) -> Iterator[Sequence[Cell]]:
    first, second = tasks.means()
    for at in map(int, np.argsort(first - second, kind="stable")):
        if first[at] != second[at]:
            numbers = (float(first[at]), float(second[at]), float(second[at] - first[at]))
            yield tasks.set, tasks.temperature, tasks.names[at], *numbers


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
