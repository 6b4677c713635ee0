"""Shared prompts: neighboring rows that begin alike, and whether computing their prompt once is worth the trouble."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import TrajectoryColumns

from .microbatch import micro_batches, micro_batches_in_order

WORTH = 0.05
"""Smallest share of a batch's tokens that sharing has to save: spreading queries, keys and values takes time too."""


def shared_starts(batch: TrajectoryColumns) -> NDArray[np.int64]:
    """Return the number of leading tokens (B,) that each row shares with the row before it.

    The number is the length of the prompt, all tokens before the first action, if both rows have the same prompt, and 0
    otherwise. Rows of one group are neighbors.
    """
    offsets, tokens, prompts = batch.token_offsets, batch.token_ids, prompt_lengths(batch)
    starts = np.zeros(len(batch), dtype=np.int64)
    for row in (np.flatnonzero(prompts[1:] == prompts[:-1]) + 1).tolist():
        before, first, length = int(offsets[row - 1]), int(offsets[row]), int(prompts[row])
        if np.array_equal(
            tokens[before : before + length], tokens[first : first + length]
        ) and _have_the_same_images(batch, row, length):
            starts[row] = length
    return starts


def _have_the_same_images(batch: TrajectoryColumns, row: int, length: int) -> bool:
    """Return whether the first ``length`` tokens of a row and of the row before it stand for the same images."""
    if not len(batch.media):
        return True
    own, before = (
        [span for span in batch.media_of(index) if span.start < length] for index in (row, row - 1)
    )
    return own == before


def prompt_lengths(batch: TrajectoryColumns) -> NDArray[np.int64]:
    """Return the number of tokens before the first action of each row (B,); 0 for rows without actions."""
    acting = np.flatnonzero(batch.num_actions)
    actions = np.flatnonzero(batch.action_mask)
    lengths = np.zeros(len(batch), dtype=np.int64)
    lengths[acting] = actions[batch.action_offsets[acting]] - batch.token_offsets[acting]
    return lengths


def is_worth_it(starts: NDArray[np.int64], batch: TrajectoryColumns) -> bool:
    """Return whether sharing saves at least ``WORTH`` of the batch's tokens.

    Args:
        starts: (B,) of ``shared_starts``.
    """
    return bool(starts.sum() >= WORTH * batch.num_tokens.sum() > 0)


def sharing_micro_batches(
    batch: TrajectoryColumns, max_tokens: int, *, share_prompts: bool, rows_per_unit: int = 1
) -> list[NDArray[np.int64]]:
    """Return the row numbers of each micro-batch; rows of one prompt stay neighbors where the prompt is computed once,
    and are dealt out by cost otherwise.

    Args:
        rows_per_unit: neighboring rows that come into one micro-batch, such as 2 for pairs.
    """
    shares = share_prompts and is_worth_it(shared_starts(batch), batch)
    cut = micro_batches_in_order if shares else micro_batches
    by_unit = batch.num_tokens.reshape(-1, rows_per_unit).sum(axis=1)  # tokens of each unit
    within = np.arange(rows_per_unit)
    return [(units[:, None] * rows_per_unit + within).ravel() for units in cut(by_unit, max_tokens)]
