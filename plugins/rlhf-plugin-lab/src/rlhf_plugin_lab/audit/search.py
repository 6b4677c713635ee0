"""Searches of one parameter that makes a gap smallest: a grid first, then the bracket around its best value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

_GOLDEN = (math.sqrt(5) - 1) / 2
_ITERATIONS = 28
"""Golden sections: they shorten a bracket 700 000 times."""


def log_grid(low: float, high: float, count: int) -> list[float]:
    """Return values from low to high whose ratios are equal."""
    return [low * (high / low) ** (index / (count - 1)) for index in range(count)]


def smallest(gap: Callable[[float], float], grid: Sequence[float], base: float) -> float | None:
    """Return the positive value with the smallest gap, by golden sections of the logarithm between the neighbors of
    the grid's best value; None where no value of the grid has a gap below ``base``."""
    gaps = [gap(value) for value in grid]
    best = min(range(len(grid)), key=gaps.__getitem__)
    if not gaps[best] < base:
        return None
    low, high = (math.log(grid[max(best - 1, 0)]), math.log(grid[min(best + 1, len(grid) - 1)]))
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    gap_left, gap_right = gap(math.exp(left)), gap(math.exp(right))
    for _ in range(_ITERATIONS):
        if gap_left <= gap_right:
            high, right, gap_right = right, left, gap_left
            left = high - _GOLDEN * (high - low)
            gap_left = gap(math.exp(left))
        else:
            low, left, gap_left = left, right, gap_right
            right = low + _GOLDEN * (high - low)
            gap_right = gap(math.exp(right))
    found = math.exp(left if gap_left <= gap_right else right)
    # A plateau or a second valley in the bracket may lead the sections away from the grid's own value.
    return found if min(gap_left, gap_right) <= gaps[best] else grid[best]


def smallest_whole(gap: Callable[[int], float], most: int) -> int:
    """Return the whole number of 1 to ``most`` with the smallest gap: all up to 32, above powers of 2 and then the
    numbers between the best one's neighbors, in steps that halve."""
    if most <= 32:
        return min(range(1, most + 1), key=gap)
    powers = [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]
    best = min(powers, key=gap)
    step: int = max(1, best // 2)
    while step:
        near = {max(1, best - step), best, min(most, best + step)}
        closer = min(near, key=gap)
        step = step if closer != best and step > 1 else step // 2
        best = closer
    return best
