"""Tables of a replay: steps that are as recorded, or what the changed options did in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_cli.tables import Cell, Column, Parts, Table, Value

from ..recorded.metrics import Metrics
from .sameness import StepCheck, values_at
from .span import Span, checkpoints_of
from .weights import Moves, moves

_LOSSES = ("loss/policy", "loss/preference", "loss/nll")
_BOTH = (
    ("grad norm", "grad_norm", "policy/grad_norm"),
    ("ratio", "ratio", "policy/ratio"),
    ("clip low", "clip_low", "clip/fraction_low"),
    ("clip high", "clip_high", "clip/fraction_high"),
    ("kl", "kl", "kl/ref"),
    ("reward", "reward", "reward/mean"),
)
_OFF_POLICY = (
    ("off-policy mean", "off_policy_mean", "mismatch/logprob_diff_mean"),
    ("max", "off_policy_max", "mismatch/logprob_diff_max"),
    ("ess", "ess", "mismatch/ess"),
)
"""Difference of the learner's log-probs, before the step's update, to the sampler's; only the changed run's matters."""


def sameness_table(checks: Sequence[StepCheck]) -> Table:
    """Return a row for each step: number of metrics and files compared, and the first difference."""
    columns = [
        Column("step", right=True),
        Column("metrics", right=True),
        Column("files", right=True),
        Column("differs"),
    ]
    rows = [[one.step, one.compared, one.files, one.metric or one.file or None] for one in checks]
    return Table(columns, rows)


def changes_table(
    span: Span,
    original: tuple[Metrics, Path],
    changed: tuple[Metrics, Path],
    start: Path | None,
    beyond_clip: Mapping[int, float],
) -> Table:
    """Return a row for each step, with values of the original and of the changed run.

    Args:
        original: metrics and folder of the span as it was.
        changed: metrics and folder of the span with changed options.
        start: checkpoint before the span; None where there is none, so that the first update has no norm.
        beyond_clip: share of tokens beyond the changed loss's clip range against the sampler, by step.
    """
    was, now = original[0], changed[0]
    both = [*((name, name.partition("/")[2], name) for name in _LOSSES), *_BOTH]
    shown = [one for one in both if one[2] in was.series or one[2] in now.series]
    off = [one for one in _OFF_POLICY if one[2] in now.series]
    columns = [
        Column("step", right=True),
        *(Column(name, key, ("original", "changed"), right=True) for name, key, _ in shown),
        *(Column(name, key, right=True) for name, key, _ in off),
        *([Column("beyond clip", "beyond_clip", right=True)] if beyond_clip else []),
        Column("update norm", "update_norm", ("original", "changed"), right=True),
        Column("cos", "update_cosine", right=True),
        Column("distance", right=True),
        Column("relative", "relative_distance", right=True),
    ]
    rows: list[list[Cell]] = []
    for step in range(span.first, span.last + 1):
        old, new = values_at(was, step), values_at(now, step)
        rows.append(
            [
                step,
                *(_pair(old.get(name), new.get(name)) for _, _, name in shown),
                *(new.get(name) for _, _, name in off),
                *([beyond_clip.get(step)] if beyond_clip else []),
                *_of_weights(_moves_of(step, original[1], changed[1], start, span.first)),
            ]
        )
    return Table(columns, rows)


def _of_weights(found: Moves | None) -> list[Cell]:
    if found is None:
        return [None, None, None, None]
    updates = _pair(found.original, found.changed)
    return [updates, found.cosine, found.distance, found.relative]


def _moves_of(
    step: int, original: Path, changed: Path, start: Path | None, first: int
) -> Moves | None:
    if start is None:
        return None
    old, new = checkpoints_of(original), checkpoints_of(changed)
    before = (start, start) if step == first else (old[step - 1], new[step - 1])
    return moves(start=start, before=before, after=(old[step], new[step]))


def _pair(original: Value, changed: Value) -> Parts:
    return Parts(f"{_text(original)} / {_text(changed)}", (original, changed))


def _text(value: Value) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
