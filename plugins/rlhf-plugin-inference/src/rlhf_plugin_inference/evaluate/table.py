"""Results as text: a block for each set at each temperature, and a line for each task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..statistics.intervals import Estimate
from .summary import SetSummary, TaskTally


def block(summary: SetSummary) -> str:
    """Return the results of a set at a temperature, with names in one column."""
    rows = list(_rows(summary))
    width = max(len(name) for name, _ in rows)
    head = f"{summary.set}, temperature {summary.temperature:g}"
    return "\n".join([head, *(f"  {name:<{width}}  {value}" for name, value in rows)])


def task_lines(tasks: Iterable[TaskTally]) -> str:
    """Return a table with a line for each task."""
    rows = [("set", "T", "task", "passed", "reward", "tokens")]
    for one in tasks:
        reward = "none" if one.reward is None else f"{one.reward:.4g}"
        passed = f"{one.passed}/{one.episodes}"
        tokens = f"{one.tokens_out:.1f}"
        rows.append((one.set, f"{one.temperature:g}", one.task, passed, reward, tokens))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def with_interval(estimate: Estimate) -> str:
    """Return an estimate as text, such as ``0.25 [0.1, 0.4]``."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"


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
