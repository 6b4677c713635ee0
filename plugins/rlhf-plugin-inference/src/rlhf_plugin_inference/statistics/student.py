"""Quantiles of the normal distribution and of Student's t, in float64, without SciPy."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_ITERATIONS = 200
_TINY = 1e-300


def normal_quantile(probability: float) -> float:
    """Return z with P(Z <= z) = ``probability``."""
    return NormalDist().inv_cdf(probability)


@lru_cache(maxsize=1024)
def student_quantile(probability: float, degrees: float) -> float:
    """Return t with P(T <= t) = ``probability``, for Student's distribution with ``degrees`` of freedom.

    With infinitely many degrees it is the normal quantile, with one the Cauchy distribution's.

    Args:
        probability: between 0 and 1, both excluded.
        degrees: more than 0.
    """
    if math.isinf(degrees):
        return normal_quantile(probability)
    if probability < 0.5:
        return -student_quantile(1.0 - probability, degrees)
    low, high = 0.0, 1.0
    while student_cdf(high, degrees) < probability:
        high *= 2.0
    for _ in range(_ITERATIONS):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if student_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def student_cdf(t: float, degrees: float) -> float:
    """Return P(T <= t) = 1 - I_x(degrees / 2, 1 / 2) / 2 for t >= 0, with x = degrees / (degrees + t^2)."""
    tail = _regularized_beta(degrees / (degrees + t * t), degrees / 2.0, 0.5) / 2.0
    return 1.0 - tail if t >= 0 else tail


def _regularized_beta(x: float, a: float, b: float) -> float:
    """Return I_x(a, b) by its continued fraction (Abramowitz and Stegun 26.5.8), evaluated by Lentz's method."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        # The fraction converges fast on the other side.
        return 1.0 - _regularized_beta(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    d = 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    c, fraction = 1.0, d
    for m in range(1, _ITERATIONS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = fraction
        for coefficient in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + coefficient * d)
            c = _away_from_zero(1.0 + coefficient / c)
            fraction *= c * d
        if abs(fraction - before) <= 1e-16 * abs(fraction):
            break
    return math.exp(log_front) * fraction / a


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
