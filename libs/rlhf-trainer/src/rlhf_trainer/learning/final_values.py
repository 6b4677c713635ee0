"""The critic's value of the state in which a truncated response was cut off."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.token_columns import TokenColumns
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.runtime import RoleHandle


async def final_values(batch: TrajectoryColumns, critic: RoleHandle) -> NDArray[np.float32]:
    """Return (B,) the value of the state after the last token of truncated rows; 0 for finished rows."""
    values = np.zeros(len(batch), dtype=np.float32)
    rows = np.flatnonzero(batch.truncated)
    if len(rows):
        values[rows] = await critic.values(one_more_action(batch.select(rows)))
    return values


def one_more_action(batch: TrajectoryColumns) -> TrajectoryColumns:
    """Return the batch with one more token in each row, which is the row's only action.

    "The value before that action" is then the value after the row. The token itself does not matter, because attention
    is causal: no earlier token sees it.
    """
    num_rows, columns = len(batch), batch.tokens.read()
    ends = columns.token_offsets[1:]
    offsets = np.arange(num_rows + 1, dtype=np.int64)
    nothing, one = np.zeros(num_rows, dtype=np.float32), np.ones(num_rows, dtype=np.int64)
    return TrajectoryColumns.from_tokens(
        TokenColumns(
            token_ids=np.insert(columns.token_ids, ends, columns.token_ids[ends - 1]),
            action_mask=np.insert(np.zeros_like(columns.action_mask), ends, True),
            token_offsets=columns.token_offsets + offsets,
            rollout_logprobs=nothing,
            weight_version=np.zeros(num_rows, dtype=np.int32),
            action_offsets=offsets,
        ),
        uid=batch.uid,
        num_turns=one,
        turn_actions=one,
        turn_rewards=nothing,
        reward=batch.reward,
        truncated=batch.truncated,
        num_media=batch.num_media,
        media=batch.media,
    )
