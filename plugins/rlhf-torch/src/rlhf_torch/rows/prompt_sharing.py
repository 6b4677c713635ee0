"""Which rows of a batch begin with the same prompt, and whether to compute it once is worth the trouble."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import TrajectoryColumns

from .microbatch import micro_batches, micro_batches_in_order

WORTH = 0.05
"""Share of a batch's tokens that has to be saved: to spread queries, keys and values takes time of its own."""


def shared_starts(batch: TrajectoryColumns) -> NDArray[np.int64]:
    """Return how many leading tokens each row has in common with the row before it (B,).

    That is the whole prompt, all that stands before the first action, if it is the same in both, and 0 otherwise. Rows
    of one group are next to each other.
    """
    offsets, tokens, prompts = batch.token_offsets, batch.token_ids, prompt_lengths(batch)
    starts = np.zeros(len(batch), dtype=np.int64)
    for row in np.flatnonzero(prompts[1:] == prompts[:-1]) + 1:
        before, first, length = int(offsets[row - 1]), int(offsets[row]), int(prompts[row])
        if np.array_equal(tokens[before : before + length], tokens[first : first + length]):
            starts[row] = length
    return starts


def prompt_lengths(batch: TrajectoryColumns) -> NDArray[np.int64]:
    """Return the tokens before the first action of each row (B,); 0 for rows without actions."""
    acting = np.flatnonzero(batch.num_actions)
    actions = np.flatnonzero(batch.action_mask)
    lengths = np.zeros(len(batch), dtype=np.int64)
    lengths[acting] = actions[batch.action_offsets[acting]] - batch.token_offsets[acting]
    return lengths


def is_worth_it(starts: NDArray[np.int64], batch: TrajectoryColumns) -> bool:
    """Whether enough tokens of a batch would be saved."""
    return bool(starts.sum() >= WORTH * batch.num_tokens.sum() > 0)


def sharing_micro_batches(
    batch: TrajectoryColumns, max_tokens: int, *, share_prompts: bool
) -> list[NDArray[np.int64]]:
    """Return the rows of each micro-batch. Those that begin with the same prompt stay next to each other where it is
    to be computed once, and that is worth it."""
    shares = share_prompts and is_worth_it(shared_starts(batch), batch)
    cut = micro_batches_in_order if shares else micro_batches
    return cut(batch.num_tokens, max_tokens)
