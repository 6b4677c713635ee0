"""The split of a batch's rows over ranks, as pure functions of the rows' lengths."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

ATTENTION_SHARE = 1.0 / 24576
"""Cost of a token's attention to one earlier token, relative to the rest of the token's cost: 1 / (12 D), for D = 2048.
A layer of width D has about 12 D^2 weights, so it does 2 * 12 D^2 operations for a token and 2 D for a pair of tokens.
"""


def sequence_cost(num_tokens: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return (B,) relative cost of each row of T tokens: T + T^2 ``ATTENTION_SHARE``."""
    tokens = num_tokens.astype(np.float64)
    return tokens + ATTENTION_SHARE * tokens**2


def split_rows(num_tokens: NDArray[np.integer], num_ranks: int) -> list[NDArray[np.int64]]:
    """Return the ascending row indices of each rank; each row goes to exactly one rank.

    The most expensive row that is left goes to the rank with the least cost so far. Ties go to the lower row and the
    lower rank, so that the result depends on the lengths alone. No rank gets more cost than the mean plus one row. With
    fewer rows than ranks, the last ranks get no rows, and the backend decides what these ranks compute.

    Args:
        num_tokens: (B,) number of tokens of each row.

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
