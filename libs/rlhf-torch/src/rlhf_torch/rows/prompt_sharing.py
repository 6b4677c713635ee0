"""Shared prefixes: rows of a group that begin alike, and whether computing their beginnings once is worth the trouble.

The beginning may be the prompt of a group's samples, the turns before a fork of an episode, or a whole row that others
go on from. Tokens that the policy wrote may be part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import TrajectoryColumns

from .microbatch import ROOM, Runs, micro_batches, micro_batches_in_order
from .prefix_tree import Starts, alphabetic, common_with_the_one_before, longest_starts

WORTH = 0.05
"""Smallest share of a batch's tokens that sharing has to save: spreading keys and values takes time too."""


class Family(NamedTuple):
    """A run of neighboring rows that belong to one group, or whose prompts are the same."""

    rows: NDArray[np.int64]
    """(b,) row numbers in the batch."""
    sequences: list[NDArray[np.int64]]
    """Tokens (T,) of each row; tokens of different images differ, whatever their ids."""


def shared_starts(batch: TrajectoryColumns) -> Starts:
    """Return the longest start that each of the ``B`` rows shares with an earlier row of its family."""
    return _starts(families(batch), len(batch))


def _starts(found: Sequence[Family], size: int) -> Starts:
    starts = Starts.none(size)
    for rows, sequences in found:
        if len(rows) > 1:
            own = longest_starts(sequences)
            starts.lengths[rows] = own.lengths
            starts.sources[rows] = rows[own.sources]
    return starts


def prompt_lengths(batch: TrajectoryColumns) -> NDArray[np.int64]:
    """Return the number of tokens before the first action of each row (B,); 0 for rows without actions."""
    acting = np.flatnonzero(batch.num_actions)
    actions = np.flatnonzero(batch.action_mask)
    lengths = np.zeros(len(batch), dtype=np.int64)
    lengths[acting] = actions[batch.action_offsets[acting]] - batch.token_offsets[acting]
    return lengths


def is_worth_it(starts: Starts, batch: TrajectoryColumns) -> bool:
    """Return whether sharing saves at least ``WORTH`` of the batch's tokens.

    Args:
        starts: of the batch's rows.
    """
    return bool(starts.lengths.sum() >= WORTH * batch.num_tokens.sum() > 0)


def sharing_micro_batches(
    batch: TrajectoryColumns, max_tokens: int, *, share_prompts: bool, rows_per_unit: int = 1
) -> list[NDArray[np.int64]]:
    """Return the row numbers of each micro-batch.

    Where beginnings are shared, a micro-batch has at most ``max_tokens`` different tokens, those that the model
    computes, and rows that share most are neighbors. Elsewhere ``max_tokens`` bounds the sum of the rows' lengths, and
    rows are dealt out by cost. Rows longer than that come alone.

    Args:
        rows_per_unit: neighboring rows that come into one micro-batch, such as 2 for pairs.
    """
    found = families(batch) if share_prompts else []
    starts = _starts(found, len(batch))
    if not is_worth_it(starts, batch):
        by_unit = batch.num_tokens.reshape(-1, rows_per_unit).sum(axis=1)  # tokens of each unit
        within, cut = np.arange(rows_per_unit), micro_batches(by_unit, max_tokens)
        return [(units[:, None] * rows_per_unit + within).ravel() for units in cut]
    whole = int(batch.num_tokens.sum())
    if whole - int(starts.lengths.sum()) <= max_tokens and whole <= ROOM * max_tokens:
        return [np.arange(len(batch))]
    if rows_per_unit == 1 and not starts.is_star:
        # Branches of a tree stay together.
        found = [_in_alphabetic_order(family) for family in found]
    order = np.concatenate([family.rows for family in found])
    runs = Runs(
        lengths=batch.num_tokens[order],
        shared=np.concatenate([common_with_the_one_before(each.sequences) for each in found]),
        rows_per_unit=rows_per_unit,
        worth=WORTH,
    )
    return [np.sort(order[run]) for run in micro_batches_in_order(runs, max_tokens)]


def _in_alphabetic_order(family: Family) -> Family:
    order = alphabetic(family.sequences)
    return Family(family.rows[order], [family.sequences[index] for index in order])


def families(batch: TrajectoryColumns) -> list[Family]:
    """Return the families of a batch, every row in one of them, in order."""
    sequences = batch.tokens_with_images()
    prompts = prompt_lengths(batch).tolist()
    in_group = (np.diff(batch.uid[:, :2], axis=0, prepend=-1) == 0).all(axis=1).tolist()
    runs: list[list[int]] = []
    for row, sequence in enumerate(sequences):
        length = prompts[row]
        if row and (
            in_group[row]
            or (
                0 < length == prompts[row - 1]
                and np.array_equal(sequence[:length], sequences[row - 1][:length])
            )
        ):
            runs[-1].append(row)
        else:
            runs.append([row])
    return [Family(np.array(rows), [sequences[row] for row in rows]) for rows in runs]
