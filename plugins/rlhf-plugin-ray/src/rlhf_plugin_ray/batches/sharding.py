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


def split_rows(
    num_tokens: NDArray[np.integer], num_ranks: int, rows_per_unit: int = 1
) -> list[NDArray[np.int64]]:
    """Return the ascending row indices of each rank; each unit of neighboring rows goes to exactly one rank.

    The most expensive unit that is left goes to the rank with the least cost so far. Ties go to the lower unit and the
    lower rank, so that the result depends on the lengths alone. No rank gets more cost than the mean plus one unit.
    With fewer units than ranks, the last ranks get no rows, and the backend decides what these ranks compute.

    Args:
        num_tokens: (B,) number of tokens of each row.
        rows_per_unit: number of rows of a unit, which divides B: 2 for pairs.

    Source: Graham 1969, longest processing time first.
    """
    cost = sequence_cost(num_tokens).reshape(-1, rows_per_unit).sum(axis=1)  # cost of each unit
    ranks = [(0.0, rank) for rank in range(num_ranks)]
    units: list[list[int]] = [[] for _ in range(num_ranks)]
    for unit in np.argsort(-cost, kind="stable").tolist():
        filled, rank = heapq.heappop(ranks)
        units[rank].append(unit)
        heapq.heappush(ranks, (filled + float(cost[unit]), rank))
    within = np.arange(rows_per_unit)
    sorted_units = (np.array(sorted(part), dtype=np.int64) for part in units)
    return [(part[:, None] * rows_per_unit + within).ravel() for part in sorted_units]
