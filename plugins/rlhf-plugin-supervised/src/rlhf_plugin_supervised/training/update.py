"""The data of one optimizer update, what a model says of many rows, a batch at a time, and of those held out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import RoleHandle, TrainBatch, TrajectoryColumns

from .order import passes
from .seen import ModelNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The data of one optimizer update."""

    batch: TrainBatch
    mismatched_kl: float | None = None
    """See ``StepPlan.mismatched_kl``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One evaluation."""

    metrics: Mapping[str, float]
    """See ``sets.held_out_metrics``."""
    sets: Mapping[str, NDArray[np.int64]]
    """See ``rlhf_data.HeldOutSets``."""
    update: Update
    """All rows that are held out, with the columns that an update on them would have."""
    outputs: ModelNumbers
    """Numbers of the model at their learned tokens."""


Logprobs = Callable[[TrajectoryColumns], Awaitable[NDArray[np.float32]]]
"""A call of a role's handle that returns the log-prob of each action."""


async def logprobs_of(
    rows: TrajectoryColumns, logprobs: Logprobs, batch_size: int
) -> NDArray[np.float32]:
    """Return the log-prob of each learned token, (sum of A,), in nats, a batch at a time."""
    parts = [await logprobs(rows.select(part)) for part in passes(len(rows), batch_size)]
    return np.concatenate(parts)


async def scores_of(
    rows: TrajectoryColumns, model: RoleHandle, batch_size: int
) -> NDArray[np.float32]:
    """Return the score of the sequence that ends with each learned token, (sum of A,)."""
    parts = [await model.values(rows.select(part)) for part in passes(len(rows), batch_size)]
    return np.concatenate(parts)
