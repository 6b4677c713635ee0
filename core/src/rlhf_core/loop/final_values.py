"""The critic's value of the state in which a truncated response was cut off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..contracts.runtime import RoleHandle
from ..contracts.trajectory import TrajectoryColumns


async def final_values(batch: TrajectoryColumns, critic: RoleHandle) -> NDArray[np.float32]:
    """Return (B,): the value after the last token of truncated rows, and 0 of finished ones, where nothing follows."""
    values = np.zeros(len(batch), dtype=np.float32)
    rows = np.flatnonzero(batch.truncated)
    if len(rows):
        values[rows] = await critic.values(one_more_action(batch.select(rows)))
    return values


def one_more_action(batch: TrajectoryColumns) -> TrajectoryColumns:
    """Return the batch with one more token in each row, which is its only action.

    "The value before that action" is then the value after the row. Which token stands there does not matter, because
    nothing before it sees it.
    """
    num_rows = len(batch)
    ends = batch.token_offsets[1:]
    one_each = np.arange(num_rows + 1, dtype=np.int64)
    nothing = np.zeros(num_rows, dtype=np.float32)
    return replace(
        batch,
        token_ids=np.insert(batch.token_ids, ends, batch.token_ids[ends - 1]),
        action_mask=np.insert(np.zeros_like(batch.action_mask), ends, True),
        token_offsets=batch.token_offsets + one_each,
        rollout_logprobs=nothing,
        weight_version=np.zeros(num_rows, dtype=np.int32),
        action_turn=np.zeros(num_rows, dtype=np.int32),
        turn_rewards=nothing,
        action_offsets=one_each,
    )
