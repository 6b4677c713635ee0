"""Results as text, a block for each set at each temperature, and as tables: a row for each, or for each task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rlhf_cli.tables import Cell, Column, Parts, Table

from ..statistics.intervals import Estimate
from .summary import SetSummary, TaskTally


def block(summary: SetSummary) -> str:
    """Return the results of a set at a temperature, with names in one column."""
    rows = list(_rows(summary))
    width = max(len(name) for name, _ in rows)
    head = f"{summary.set}, temperature {summary.temperature:g}"
    return "\n".join([head, *(f"  {name:<{width}}  {value}" for name, value in rows)])


def summary_table(summaries: Sequence[SetSummary]) -> Table:
    """Return a row for each set at each temperature. A number that only some have is empty in the others."""
    rows = [_cells(summary) for summary in summaries]
    columns = {column.name: column for row in rows for column in row}
    return Table(
        list(columns.values()),
        [
            [{column.name: cell for column, cell in row.items()}.get(name) for name in columns]
            for row in rows
        ],
    )


def task_table(tasks: Iterable[TaskTally]) -> Table:
    """Return a row for each task."""
    heads = [Column("set"), Column("T", key="temperature"), Column("task")]
    heads += [Column("passed", parts=("", "of")), Column("reward"), Column("tokens")]
    return Table(heads, [_task_cells(one) for one in tasks])


def interval_column(name: str, key: str = "") -> Column:
    """Return the column of estimates with their intervals."""
    return Column(name, key=key, parts=("", "low", "high"))


def interval_cell(estimate: Estimate | None) -> Parts | None:
    """Return an estimate with its interval as a cell; None stays None."""
    if estimate is None:
        return None
    return Parts(with_interval(estimate), (estimate.value, estimate.low, estimate.high))


def with_interval(estimate: Estimate) -> str:
    """Return an estimate as text, such as ``0.25 [0.1, 0.4]``."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"


def _cells(summary: SetSummary) -> Mapping[Column, Cell]:
    estimates = {"reward": summary.reward}
    estimates |= {f"pass@{k}": rate for k, rate in summary.pass_at.items()}
    if len(summary.rewards) > 1:
        estimates |= {f"reward {name}": reward for name, reward in summary.rewards.items()}
    before: dict[Column, Cell] = {
        Column("set"): summary.set,
        Column("T", key="temperature"): summary.temperature,
        Column("tasks"): summary.tasks,
        Column("episodes"): summary.episodes,
        **{interval_column(name): interval_cell(each) for name, each in estimates.items()},
    }
    behind: dict[Column, Cell] = {
        Column("without a reward"): summary.unscored,
        **{Column(f"ended by {name}"): count for name, count in summary.ends.items()},
        Column("answers of an episode"): summary.turns,
        Column("tokens read"): summary.tokens_in,
        Column("tokens written"): summary.tokens_out,
        Column("truncated"): summary.truncated,
    }
    # An environment chooses the names of its metrics, and may choose one of these.
    taken = {key for column in (*before, *behind) for key in (column.name, *column.keys)}
    metrics = {**summary.measured, **summary.metrics}
    named = {Column(f"metric {n}" if n in taken else n): value for n, value in metrics.items()}
    return {**before, **named, **behind}


def _task_cells(one: TaskTally) -> Sequence[Cell]:
    return (
        one.set,
        one.temperature,
        one.task,
        Parts(f"{one.passed}/{one.episodes}", (one.passed, one.episodes)),
        Parts("none", (None,)) if one.reward is None else one.reward,
        Parts(f"{one.tokens_out:.1f}", (one.tokens_out,)),
    )


def _rows(summary: SetSummary) -> Iterator[tuple[str, str]]:
    yield "tasks", str(summary.tasks)
    yield "episodes", str(summary.episodes)
    if summary.reward is not None:
        yield "reward", with_interval(summary.reward)
    yield from ((f"pass@{k}", with_interval(rate)) for k, rate in summary.pass_at.items())
    if len(summary.rewards) > 1:
        for name, reward in summary.rewards.items():
            yield f"reward {name}", with_interval(reward)
    for name, value in {**summary.measured, **summary.metrics}.items():
        yield name, f"{value:.4g}"
    if summary.unscored:
        yield "without a reward", str(summary.unscored)
    yield "ended by", ", ".join(f"{name} {count}" for name, count in summary.ends.items())
    if summary.turns != 1.0:
        yield "answers of an episode", f"{summary.turns:.4g}"
    for name, total in (("read", summary.tokens_in), ("written", summary.tokens_out)):
        yield f"tokens {name}", f"{total:,} ({total / summary.episodes:.4g} an episode)"
    yield "truncated", f"{summary.truncated:.4g}"
