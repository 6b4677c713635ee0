"""The split of a batch's rows over ranks, as pure functions of the rows' lengths."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import TrajectoryColumns

ATTENTION_SHARE = 1.0 / 24576
"""Cost of a token's attention to one earlier token, relative to the rest of the token's cost: 1 / (12 D), for D = 2048.
A layer of width D has about 12 D^2 weights, so it does 2 * 12 D^2 operations for a token and 2 D for a pair of tokens.
"""

UNEVEN = 0.05
"""Cost that the fullest rank may have beyond that of rows dealt one by one, for groups to stay together: a backend that
computes every prompt with every row gains nothing from it."""


def split_batch(
    batch: TrajectoryColumns, num_ranks: int, rows_per_unit: int = 1
) -> list[NDArray[np.int64]]:
    """Return the ascending row indices of each rank.

    The rows of a group stay together where the fullest rank then computes less: a rank computes their prompt once.
    Elsewhere, such as with fewer groups than ranks, each row is dealt by itself. Arguments are those of ``split_rows``.
    """
    single = split_rows(batch.num_tokens, num_ranks, rows_per_unit)
    group = np.cumsum((np.diff(batch.uid[:, :2], axis=0, prepend=-1) != 0).any(axis=1))
    if rows_per_unit > 1 or not len(group) or group[-1] == len(group):
        return single
    cost = sequence_cost(batch.num_tokens)
    dealt = _dealt(np.bincount(group, cost)[1:].astype(np.float64), num_ranks)
    together = [np.flatnonzero(np.isin(group, np.array(part) + 1)) for part in dealt]
    prompt = batch.num_tokens - batch.num_actions
    fullest = [max(float(cost[rows].sum()) for rows in way) for way in (single, together)]
    computed = [
        max(float(cost[rows].sum()) - _repeated(group[rows], prompt[rows]) for rows in way)
        for way in (single, together)
    ]
    is_even = fullest[1] <= (1 + UNEVEN) * fullest[0]
    return together if is_even and computed[1] < computed[0] else single


def _repeated(group: NDArray[np.int64], prompt: NDArray[np.integer]) -> float:
    """Return the tokens of prompts that rows before them have too, if a group's rows share as much as the row with the
    fewest tokens that nobody sampled."""
    numbers, counts = np.unique(group, return_counts=True)
    return float(
        sum(
            (count - 1) * int(prompt[group == number].min())
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        )
    )


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
    within = np.arange(rows_per_unit)
    sorted_units = (np.array(part, dtype=np.int64) for part in _dealt(cost, num_ranks))
    return [(part[:, None] * rows_per_unit + within).ravel() for part in sorted_units]


def _dealt(cost: NDArray[np.float64], num_ranks: int) -> list[list[int]]:
    """Return the ascending units of each rank."""
    ranks = [(0.0, rank) for rank in range(num_ranks)]
    units: list[list[int]] = [[] for _ in range(num_ranks)]
    for unit in np.argsort(-cost, kind="stable").tolist():
        filled, rank = heapq.heappop(ranks)
        units[rank].append(unit)
        heapq.heappush(ranks, (filled + float(cost[unit]), rank))
    return [sorted(part) for part in units]
