"""Which micro-batches a rank runs, and what it runs where it has none left while other ranks do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.contracts import Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_plugin_local.backend.prompt_sharing import sharing_micro_batches

from .ranks import Ranks

Rows = NDArray[np.int64]


def agreed_passes(
    batch: TrajectoryColumns,
    max_tokens: int,
    ranks: Ranks,
    *,
    together: bool,
    share_prompts: bool = False,
) -> list[Rows]:
    """Return the rows of each pass of this rank; a pass may have none.

    Rows without actions are left out. They have no part in any result, and a pass over them alone would leave the head
    without a gradient, which ZeRO waits for.

    Args:
        batch: this rank's rows.
        together: all ranks make equally many passes, and at least one: ZeRO's collective calls are made in every one.
        share_prompts: rows that begin with the same prompt stay next to each other, if that is worth it.
    """
    rows = np.flatnonzero(batch.num_actions)
    acting = batch if len(rows) == len(batch) else batch.select(rows)
    parts = sharing_micro_batches(acting, max_tokens, share_prompts=share_prompts)
    passes = [rows[part] for part in parts]
    if not together:
        return passes
    count = max(1, ranks.largest(len(passes)))
    return passes + [np.zeros(0, dtype=np.int64)] * (count - len(passes))


def rows_or_stand_in(batch: TrajectoryColumns, rows: Rows) -> TrajectoryColumns:
    """Return the rows of a pass; of one without rows, a stand-in of two tokens, whose results nobody may use."""
    if not len(rows):
        return _STAND_IN
    return batch if len(rows) == len(batch) else batch.select(rows)


def nothing(results: Tensor) -> Tensor:
    """Return a loss of 0 that goes through the whole model backwards, and gives a gradient of 0 everywhere."""
    return results.sum() * 0.0


_STAND_IN = TrajectoryColumns.from_trajectories(
    [
        Trajectory(
            uid=Uid(0, 0),
            token_ids=np.zeros(2, dtype=np.int32),
            action_mask=np.array([False, True]),
            rollout_logprobs=np.zeros(1, dtype=np.float32),
            weight_version=np.zeros(1, dtype=np.int32),
            turns=(Turn(start=1, end=2),),
            reward=0.0,
        )
    ]
)
