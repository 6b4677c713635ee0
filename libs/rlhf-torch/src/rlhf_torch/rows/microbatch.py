"""Micro-batches: the sequences of one pass, cut into parts that are bounded in tokens and balanced in cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

QUADRATIC_COST = 1.0 / 4096.0
"""The factor b in the cost T + b T^2 of a sequence of T tokens. Attention over T tokens takes about 2 T D of the 24 D^2
multiplications that a token costs elsewhere, so b is 1 / (12 D): a few 10^-4 for the hidden sizes D in use. Only the
balance depends on it, never a result."""

ROOM = 4
"""Tokens of whole sequences in a micro-batch for each different token that it may have: attention keeps keys and values
of whole sequences, a small part of what a layer keeps of a token that it computes."""


def micro_batches(lengths: NDArray[np.int64], max_tokens: int) -> list[NDArray[np.int64]]:
    """Return the row numbers of each micro-batch: every row once, rows and micro-batches in rising order.

    The search starts from the fewest micro-batches that could hold the tokens; the longest sequences are placed first,
    each into the cheapest micro-batch that has room. A sequence longer than ``max_tokens`` gets one of its own.
    """
    if not len(lengths):
        return []
    count = -(-int(lengths.clip(max=max_tokens).sum()) // max_tokens)
    while (bins := _place(lengths, max_tokens, count)) is None:
        count += 1
    parts = [np.sort(np.array(rows, dtype=np.int64)) for rows in bins if rows]
    return sorted(parts, key=lambda rows: int(rows[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Rows of which neighbors begin alike, so that a run of neighbors has fewer different tokens than tokens."""

    lengths: NDArray[np.int64]
    """(B,) tokens of each row."""
    shared: NDArray[np.int64]
    """(B,) leading tokens that each row shares with the one before it."""
    rows_per_unit: int = 1
    """Number of neighboring rows that stay together."""
    worth: float = 0.0
    """Share of the tokens of a run that has to be saved; a run that saves less is computed whole."""

    def cuts(self, limit: int, room: int) -> list[int]:
        """Return the first row of each run but the first, if a run takes units until the next one has no room.

        Args:
            limit: tokens of a run that are computed.
            room: tokens of a run, shared ones counted in each row.
        """
        cuts, whole, different = [], 0, 0
        size = self.rows_per_unit
        starts, lengths = self.shared.tolist(), self.lengths.tolist()
        for first in range(0, len(lengths), size):
            unit = sum(lengths[first : first + size])
            inside = sum(starts[first + 1 : first + size])  # shared within the unit
            own = unit - inside - starts[first]
            if whole and self._exceeds(whole + unit, different + own, limit, room):
                cuts.append(first)
                whole = 0
            different = different + own if whole else unit - inside
            whole += unit
        return cuts

    def _exceeds(self, whole: int, different: int, limit: int, room: int) -> bool:
        computed = different if whole - different >= self.worth * whole else whole
        return computed > limit or whole > room


def micro_batches_in_order(runs: Runs, max_tokens: int) -> list[NDArray[np.int64]]:
    """Return the row numbers of each micro-batch, each a run of neighboring rows.

    A micro-batch takes rows until the next one has no room: it has at most ``max_tokens`` different tokens, and
    ``ROOM`` times as many where shared ones are counted in each row. The limit in tokens is the smallest one that needs
    no more micro-batches than ``max_tokens`` does. What is longer gets a micro-batch of its own.
    """
    if not len(runs.lengths):
        return []
    low, high, room = int(runs.lengths.min()), max_tokens, ROOM * max_tokens
    fewest = len(runs.cuts(max_tokens, room))
    while low < high:
        middle = (low + high) // 2
        if len(runs.cuts(middle, room)) > fewest:
            low = middle + 1
        else:
            high = middle
    return np.split(np.arange(len(runs.lengths)), runs.cuts(max(low, high), room))


def _place(lengths: NDArray[np.int64], max_tokens: int, count: int) -> list[list[int]] | None:
    """Fill ``count`` bins, or return None when that is too few."""
    bins: list[list[int]] = [[] for _ in range(count)]
    tokens = np.zeros(count, dtype=np.int64)
    costs = np.zeros(count)
    for row in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[row])
        room = (tokens + length <= max_tokens) | (tokens == 0)
        if not room.any():
            return None
        target = int(np.where(room, costs, np.inf).argmin())
        bins[target].append(row)
        tokens[target] += length
        costs[target] += length + QUADRATIC_COST * length**2
    return bins
