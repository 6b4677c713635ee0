"""Micro-batches: the sequences of one pass, cut into parts that are bounded in tokens and balanced in cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

QUADRATIC_COST = 1.0 / 4096.0
"""The factor b in the cost T + b T^2 of a sequence of T tokens. Attention over T tokens takes about 2 T D of the 24 D^2
multiplications that a token costs elsewhere, so b is 1 / (12 D): a few 10^-4 for the hidden sizes D in use. Only the
balance depends on it, never a result."""


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


def micro_batches_in_order(lengths: NDArray[np.int64], max_tokens: int) -> list[NDArray[np.int64]]:
    """Return the row numbers of each micro-batch, each a run of neighboring rows.

    A micro-batch takes rows until the next row has no room. The limit in tokens is the smallest one that needs no more
    micro-batches than ``max_tokens`` does. A longer sequence gets a micro-batch of its own.
    """
    if not len(lengths):
        return []
    low, high = int(lengths.min()), max_tokens
    fewest = len(_cuts(lengths, max_tokens))
    while low < high:
        middle = (low + high) // 2
        if len(_cuts(lengths, middle)) > fewest:
            low = middle + 1
        else:
            high = middle
    return np.split(np.arange(len(lengths)), _cuts(lengths, max(low, high)))


def _cuts(lengths: NDArray[np.int64], limit: int) -> list[int]:
    """Return the first row of each micro-batch but the first."""
    cuts, held = [], 0
    for row, length in enumerate(lengths.tolist()):
        if held and held + length > limit:
            cuts.append(row)
            held = 0
        held += length
    return cuts


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
