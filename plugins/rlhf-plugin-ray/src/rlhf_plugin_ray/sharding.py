"""Which rank computes which sequences. Pure functions on lengths."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

ATTENTION_SHARE = 1.0 / 24576
"""Cost of a token's attention to one earlier token, relative to the rest of the token's cost. A layer of width D has
about 12 D^2 weights, so 2 * 12 D^2 operations a token and 2 D a pair of tokens: 1 / (12 D), here for D = 2048."""


def sequence_cost(num_tokens: NDArray[np.integer]) -> NDArray[np.float64]:
    """(B,) relative cost of each sequence: T + T^2 ``ATTENTION_SHARE``."""
    tokens = num_tokens.astype(np.float64)
    return tokens + ATTENTION_SHARE * tokens**2


def split_rows(num_tokens: NDArray[np.integer], num_ranks: int) -> list[NDArray[np.int64]]:
    """Return the rows of each rank, ascending; together each row once.

    The most expensive row that is left goes to the rank with the least cost so far; ties go to the lower row and the
    lower rank, so that the result depends on the lengths alone. No rank gets more than the mean plus one sequence.
    With fewer rows than ranks the last ranks get none: what they do then is up to the backend.

    Args:
        num_tokens: (B,) tokens of each sequence.

    Source: Graham 1969, longest processing time first.
    """
    cost = sequence_cost(num_tokens)
    ranks = [(0.0, rank) for rank in range(num_ranks)]
    rows: list[list[int]] = [[] for _ in range(num_ranks)]
    for row in np.argsort(-cost, kind="stable").tolist():
        filled, rank = heapq.heappop(ranks)
        rows[rank].append(row)
        heapq.heappush(ranks, (filled + float(cost[row]), rank))
    return [np.array(sorted(part), dtype=np.int64) for part in rows]
