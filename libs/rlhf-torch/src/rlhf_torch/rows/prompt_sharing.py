"""Shared prefixes: rows of a group that begin alike, and whether computing their beginnings once is worth the trouble.

The beginning may be the prompt of a group's samples, the turns before a fork of an episode, or a whole row that others
go on from. Tokens that the policy wrote may be part of it.

The sequences of a group are the paths of a prefix tree: they part where their tokens differ. A token's node is the
sequence up to it, so two tokens have one node if all tokens before them agree too. The first sequence that comes
through a node owns it. What a later sequence owns is a tail of it, since it leaves the tree of the earlier ones once
and never comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import TrajectoryColumns

from .microbatch import ROOM, Runs, micro_batches, micro_batches_in_order

WORTH = 0.05
"""Smallest share of a batch's tokens that sharing has to save: spreading keys and values takes time too."""
COST_OF_A_BRANCH = 4096
"""Pairs of a query and a key that take as long as a call does: 0.2 ms, backward pass included, with 4 heads of 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """Leading tokens that each of ``b`` sequences shares with an earlier one."""

    lengths: NDArray[np.int64]
    """(b,) number of leading tokens; 0 for a sequence that shares nothing."""
    sources: NDArray[np.int64]
    """(b,) index of the first sequence that begins with these tokens; the sequence's own index where there are none."""

    @classmethod
    def none(cls, size: int) -> Starts:
        """Return those of sequences that share nothing."""
        return cls(lengths=np.zeros(size, dtype=np.int64), sources=np.arange(size))

    @property
    def is_star(self) -> bool:
        """Whether all sequences that share tokens with one of the others share the same ones, as samples of a prompt
        do."""
        sharing = np.flatnonzero(self.lengths)
        roots = self.sources[sharing]
        if self.lengths[roots].any():
            return False
        pairs = np.unique(np.stack([roots, self.lengths[sharing]]), axis=1)  # (2, n)
        return bool(pairs.shape[1] == len(np.unique(roots)))


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


def branches_are_cheaper(lengths: NDArray[np.int64], starts: NDArray[np.int64]) -> bool:
    """Return whether attention branch by branch takes less time on a CPU than that of whole, padded sequences.

    Args:
        lengths: (b,) tokens of each sequence.
        starts: (b,) leading tokens that each of them shares with an earlier one.
    """
    own = lengths - starts
    pairs = np.where(
        starts > 0, own * lengths, own * own / 2
    ).sum()  # a mask hides pairs, but saves no time
    calls = COST_OF_A_BRANCH * np.count_nonzero(own)
    return bool(pairs + calls < len(lengths) * int(lengths.max()) ** 2 / 2)


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


def longest_starts(sequences: Sequence[NDArray[np.int64]]) -> Starts:
    """Return the longest start that each sequence shares with any earlier one.

    In alphabetic order the sequence that shares most with a given one is a neighbor of it. So sequences are taken out
    of that order from the last one to the first: what is left when a sequence's turn comes are the earlier ones.

    Args:
        sequences: tokens of each sequence (T,), not negative.
    """
    size, order = len(sequences), alphabetic(sequences)
    place = [0] * size
    for at, index in enumerate(order):
        place[index] = at
    # Linked list over alphabetic places, with an end mark on each side: common[i] is shared by i and the place before.
    before, after = list(range(-1, size)), list(range(1, size + 2))
    common = [0, *common_with_the_one_before([sequences[index] for index in order])[1:], 0]
    lengths, sources = [0] * size, list(range(size))
    for index in range(size - 1, -1, -1):
        at = place[index]
        left, right = before[at], after[at]
        with_left = common[at] if left >= 0 else 0
        with_right = common[right] if right < size else 0
        lengths[index] = max(with_left, with_right)
        if lengths[index]:
            sources[index] = order[left if with_left >= with_right else right]
        # Of three in alphabetic order the outer two share what both share with the middle one.
        common[right] = min(with_left, with_right)
        before[right] = left
        if left >= 0:
            after[left] = right
    _name_owners(lengths, sources)
    return Starts(
        lengths=np.array(lengths, dtype=np.int64), sources=np.array(sources, dtype=np.int64)
    )


def _name_owners(lengths: list[int], sources: list[int]) -> None:
    """Replace each source by the first sequence that begins with the shared tokens."""
    for index, length in enumerate(lengths):
        while length and lengths[sources[index]] >= length:
            sources[index] = sources[sources[index]]


def alphabetic(sequences: Sequence[NDArray[np.int64]]) -> list[int]:
    """Return the indices of the sequences in alphabetic order of their tokens; equal ones keep their order."""
    # Numbers that are not negative compare like their bytes, the highest first.
    written = [tokens.astype(">i8").tobytes() for tokens in sequences]
    return sorted(range(len(sequences)), key=written.__getitem__)


def common_with_the_one_before(sequences: Sequence[NDArray[np.int64]]) -> list[int]:
    """Return the number of leading tokens that each sequence shares with the one before it; 0 for the first."""
    shared = [0] * len(sequences)
    for row in range(1, len(sequences)):
        before, own = sequences[row - 1], sequences[row]
        size = min(len(before), len(own))
        differs = before[:size] != own[:size]
        shared[row] = int(differs.argmax()) if differs.any() else size
    return shared
