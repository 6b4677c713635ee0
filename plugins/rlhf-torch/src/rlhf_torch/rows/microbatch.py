"""How the sequences of one pass are cut into micro-batches: bounded in tokens, balanced in cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

QUADRATIC_COST = 1.0 / 4096.0
"""Cost of a sequence of T tokens is T + b T^2. Attention over T tokens takes about 2 T D of the 24 D^2
multiplications that a token costs elsewhere, so b is 1 / (12 D): for the widths in use a few 10^-4. Only the balance
depends on it, never a result."""


def micro_batches(lengths: NDArray[np.int64], max_tokens: int) -> list[NDArray[np.int64]]:
    """Return rows for each micro-batch: every row once, rows and micro-batches in rising order.

    Starts from the fewest micro-batches that could hold the tokens; the longest sequences are placed first, each into
    the cheapest micro-batch that has room. A sequence longer than ``max_tokens`` gets a micro-batch of its own.
    """
    if not len(lengths):
        return []
    count = -(-int(lengths.clip(max=max_tokens).sum()) // max_tokens)
    while (bins := _place(lengths, max_tokens, count)) is None:
        count += 1
    parts = [np.sort(np.array(rows, dtype=np.int64)) for rows in bins if rows]
    return sorted(parts, key=lambda rows: int(rows[0]))


def micro_batches_in_order(lengths: NDArray[np.int64], max_tokens: int) -> list[NDArray[np.int64]]:
    """Return rows for each micro-batch, where rows that are next to each other stay together.

    Each micro-batch takes rows until the next one has no room, up to the smallest limit in tokens with which there are
    no more micro-batches than with ``max_tokens``. A longer sequence gets a micro-batch of its own.
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
    """First rows of all micro-batches but the first."""
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
