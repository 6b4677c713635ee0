"""Cutting a batch into one part for each rank, and joining the ranks' results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import TopTokens, TrainBatch, TrajectoryColumns

Rows = NDArray[np.int64]


def columns_of(batch: TrainBatch, rows: Rows, supervised_rows: Rows | None) -> TrainBatch:
    """Return the given rows of a batch with empty trajectories, which the caller sends to the rank separately.

    Args:
        rows: ascending indices into ``batch.trajectories``; if all rows are given, the columns are not copied.
        supervised_rows: ascending indices into ``batch.supervised``; None if the batch has no supervised rows.
    """
    trajectories = batch.trajectories
    if batch.supervised is not None and supervised_rows is not None:
        batch = replace(batch, supervised=rows_of(batch.supervised, supervised_rows))
    empty = trajectories.select(rows[:0])
    if len(rows) == len(trajectories):
        return replace(batch, trajectories=empty)
    actions = trajectories.action_index(rows)
    top = batch.teacher_top
    return replace(
        batch,
        trajectories=empty,
        columns={name: column[actions] for name, column in batch.columns.items()},
        teacher_top=None
        if top is None
        else TopTokens(token_ids=top.token_ids[actions], logprobs=top.logprobs[actions]),
    )


def rows_of(trajectories: TrajectoryColumns, rows: Rows) -> TrajectoryColumns:
    """Return the given rows, which have to be ascending; the batch itself, uncopied, if these are all of its rows."""
    return trajectories if len(rows) == len(trajectories) else trajectories.select(rows)


def joined(
    batch: TrajectoryColumns, rows: Sequence[Rows], parts: Sequence[NDArray[Any]]
) -> NDArray[Any]:
    """Return (sum of A, ...) values in the order of the batch's actions, from each rank's values at its own rows.

    The result is a new array, because arrays from the object store are read-only.

    Args:
        rows: ascending row indices of each rank.
        parts: (sum of A of the rank's rows, ...) values of each rank.
    """
    first = parts[0]
    out = np.empty((int(batch.num_actions.sum()), *first.shape[1:]), dtype=first.dtype)
    for part_rows, part in zip(rows, parts, strict=True):
        out[batch.action_index(part_rows)] = part
    return out
