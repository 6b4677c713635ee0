"""Two models on the same tasks: the mean difference of a task, whether it could be chance, and who won how often.

Pairing by task takes out how hard a task is, which is most of the noise (Miller 2024, arXiv:2411.00640, section 4.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .intervals import Estimate, mean_estimate

_EXACT_TASKS = 16
"""Number of differing tasks up to which all 2^P signs are looked at."""
_DRAWS = 20_000
_CHUNK = 2_000
_ROUNDING = 1e-12
"""Relative difference within which two sums of the same numbers are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """Model B minus model A."""

    difference: Estimate
    """Mean over tasks of B's mean minus A's, with Student's interval over tasks."""
    p_value: float
    """Result of the two-sided sign-flip test: how often chance alone gives a mean difference as large."""
    wins: int
    """Tasks on which B's mean is higher."""
    losses: int
    ties: int
    sign_p_value: float
    """Result of the exact two-sided sign test of wins against losses. With one episode a task that passes or fails it
    is McNemar's exact test."""


def compare_tasks(
    first: NDArray[np.float64], second: NDArray[np.float64], *, level: float, seed: int
) -> PairedComparison:
    """Return how the second model's tasks (P,) compare with the first one's, task by task.

    Args:
        first: (P,) mean of each task's episodes, model A.
        second: (P,) the same of model B, in the same order.
        level: of the interval, such as 0.95.
        seed: of the signs, where there are too many to look at all.
    """
    differences = second - first  # (P,)
    scale = np.maximum(np.abs(first), np.abs(second))
    differences[np.abs(differences) <= _ROUNDING * scale] = 0.0
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    return PairedComparison(
        difference=mean_estimate(differences, np.arange(len(differences)), level),
        p_value=sign_flip_p_value(differences, seed=seed),
        wins=wins,
        losses=losses,
        ties=len(differences) - wins - losses,
        sign_p_value=sign_test_p_value(wins, losses),
    )


def sign_flip_p_value(differences: NDArray[np.float64], *, seed: int) -> float:
    """Return the share of all choices of signs with ``|sum_i s_i d_i| >= |sum_i d_i|``.

    If the models are alike, each difference (P,) is as likely as its negative. Up to 16 differing tasks it is exact;
    with more it is ``(1 + hits) / (1 + draws)`` of 20 000 random choices, which is never 0.

    Source: Fisher 1935, "The design of experiments", section 21; the 1s, Phipson and Smyth 2010.
    """
    moved = differences[differences != 0.0]
    if not len(moved):
        return 1.0
    reached = abs(float(moved.sum())) - _ROUNDING * float(np.abs(moved).sum())
    if len(moved) <= _EXACT_TASKS:
        bits = np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved)) & 1  # (2^P, P)
        return float((np.abs((2.0 * bits - 1.0) @ moved) >= reached).mean())
    generator = np.random.Generator(np.random.Philox(seed))
    hits = 0
    for _ in range(_DRAWS // _CHUNK):
        signs = 2.0 * generator.integers(2, size=(_CHUNK, len(moved)), dtype=np.int8) - 1.0
        hits += int((np.abs(signs @ moved) >= reached).sum())
    return (1 + hits) / (1 + _DRAWS)


def sign_test_p_value(wins: int, losses: int) -> float:
    """Return the two-sided exact p-value of wins against losses: ``min(1, 2 P(X <= min(wins, losses)))`` with X
    binomial of ``wins + losses`` fair trials. Ties say nothing.

    Source: McNemar 1947, in its exact form.
    """
    total = wins + losses
    tail = sum(math.comb(total, count) for count in range(min(wins, losses) + 1))
    return min(1.0, float(2 * tail / 2**total))
