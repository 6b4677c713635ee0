"""Prefix trees: how many leading tokens each sequence shares with an earlier one.

The sequences of a group are the paths of a tree: they part where their tokens differ. A token's node is the sequence
up to it, so two tokens have one node if all tokens before them agree too. The first sequence that comes through a
node owns it. What a later sequence owns is a tail of it, since it leaves the tree of the earlier ones once and never
comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
