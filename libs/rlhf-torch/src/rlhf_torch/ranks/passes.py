"""Passes of a rank: its micro-batches, and stand-ins while other ranks still have micro-batches.

A *pass* is one forward pass, in training with its backward pass, over the rows of one micro-batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.contracts import TrainBatch, Trajectory, TrajectoryColumns, Turn, Uid

from ..experts.routing import counted_tokens
from ..models.role_model import RoleModel
from ..rows.prompt_sharing import sharing_micro_batches
from .ranks import Ranks

Rows = NDArray[np.int64]


def agreed_passes(
    batch: TrajectoryColumns,
    max_tokens: int,
    ranks: Ranks,
    *,
    together: bool,
    share_prompts: bool = False,
    rows_per_unit: int = 1,
) -> list[Rows]:
    """Return the row indices of each pass of this rank; a pass may have no rows.

    Rows without actions are left out. They have no part in any result, and a pass over such rows alone would leave the
    head without a gradient, for which ZeRO waits.

    Args:
        batch: this rank's rows.
        max_tokens: the number of tokens that a pass may have.
        together: all ranks make equally many passes, and at least one, because ZeRO makes collective calls in every
            pass. The call itself is then collective.
        share_prompts: rows with the same prompt go into the same pass, where that saves tokens.
        rows_per_unit: number of neighboring rows that go into the same pass, such as 2 for pairs.
    """
    rows = _acting(batch.num_actions, rows_per_unit)
    acting = batch if len(rows) == len(batch) else batch.select(rows)
    parts = sharing_micro_batches(
        acting, max_tokens, share_prompts=share_prompts, rows_per_unit=rows_per_unit
    )
    passes = [rows[part] for part in parts]
    if not together:
        return passes
    count = max(1, ranks.largest(len(passes)))
    return passes + [np.zeros(0, dtype=np.int64)] * (count - len(passes))


def update_tokens(role: RoleModel, batch: TrainBatch, ranks: Ranks) -> int:
    """Return the tokens of the update on all ranks, for a role with a balancing loss; a collective call of its ranks.
    Another role never asks for them, and gets 0.

    Args:
        batch: this rank's rows, each on one rank alone.
    """
    if role.routing is None or not role.routing.coefficient:
        return 0
    return ranks.total(counted_tokens(batch))


def _acting(num_actions: NDArray[np.int64], rows_per_unit: int) -> Rows:
    """Return the rows of all units that have an action."""
    acts = num_actions.reshape(-1, rows_per_unit).any(axis=1)
    return np.flatnonzero(acts.repeat(rows_per_unit))


def rows_or_stand_in(batch: TrajectoryColumns, rows: Rows) -> TrajectoryColumns:
    """Return the rows of a pass. A pass without rows gets a stand-in row of two tokens, whose results are unused."""
    if not len(rows):
        return _STAND_IN
    return batch if len(rows) == len(batch) else batch.select(rows)


def nothing(results: Tensor) -> Tensor:
    """Return a loss of 0 with a gradient of 0 for every parameter that ``results`` depends on."""
    return results.sum() * 0.0


_STAND_IN = TrajectoryColumns.from_trajectories(
    [
        Trajectory(
            uid=Uid(0, 0),
            # Token 0 is padding in most families, with an embedding of zeros, where a norm may have no gradient.
            token_ids=np.array([1, 2], dtype=np.int32),
            action_mask=np.array([False, True]),
            rollout_logprobs=np.zeros(1, dtype=np.float32),
            weight_version=np.zeros(1, dtype=np.int32),
            turns=(Turn(start=1, end=2),),
            reward=0.0,
        )
    ]
)
