"""Confidence intervals of means and of rates over tasks, each with several episodes.

- **A mean of rewards** gets Student's interval around the mean, with the standard error clustered by task. Rewards have
  no bounds that all share, so nothing sharper holds; t rather than the normal, because test sets may be small.
- **A rate** (pass@k) gets Wilson's interval, which stays within 0 and 1 and does not collapse at either: a model that
  passes 20 of 20 tasks has not proved a rate of 1. Its number of trials is the effective one of a clustered sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .student import normal_quantile, student_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number that was estimated from tasks."""

    value: float
    low: float | None
    """Lower end of the confidence interval; None where a single task says nothing about others."""
    high: float | None
    standard_error: float | None
    """Clustered by task; None with a single task."""
    tasks: int


def clustered_standard_error(values: NDArray[np.float64], tasks: NDArray[np.int64]) -> float | None:
    """Return the standard error of the mean of ``values`` (N,), clustered by task.

    ``SE^2 = C / (C - 1) * sum_c (sum_{i in c} (x_i - mean))^2 / N^2`` over the C tasks. With one episode a task it is
    the usual standard error; with equally many of each it is that of the tasks' means. None with a single task.

    Source: Liang and Zeger 1986; Miller 2024, arXiv:2411.00640, equation 4, there without the factor C / (C - 1),
    which makes the square unbiased where tasks have equally many episodes.

    Args:
        tasks: (N,) any number that names each value's task.
    """
    names, index = np.unique(tasks, return_inverse=True)
    count = len(names)
    if count < 2:
        return None
    sums = np.bincount(index, weights=values - values.mean(), minlength=count)  # (C,)
    return math.sqrt(count / (count - 1) * float((sums**2).sum())) / len(values)


def mean_estimate(values: NDArray[np.float64], tasks: NDArray[np.int64], level: float) -> Estimate:
    """Return the mean of ``values`` (N,) with Student's interval: mean +- t_{C-1} * clustered standard error.

    Args:
        tasks: (N,) any number that names each value's task.
        level: such as 0.95.
    """
    mean, error = float(values.mean()), clustered_standard_error(values, tasks)
    count = len(np.unique(tasks))
    if error is None:
        return Estimate(value=mean, low=None, high=None, standard_error=None, tasks=count)
    half = student_quantile((1.0 + level) / 2.0, count - 1) * error
    return Estimate(
        value=mean, low=mean - half, high=mean + half, standard_error=error, tasks=count
    )


def rate_estimate(rates: NDArray[np.float64], episodes: int, level: float) -> Estimate:
    """Return the mean of the tasks' ``rates`` (P,), each in [0, 1], with Wilson's interval at the effective number of
    trials.

    Args:
        episodes: G, of each task.
        level: such as 0.95.
    """
    count = len(rates)
    rate = float(rates.mean())
    error = clustered_standard_error(rates, np.arange(count))
    trials = effective_trials(rates, episodes, level)
    low, high = wilson_interval(rate, trials, level)
    return Estimate(value=rate, low=low, high=high, standard_error=error, tasks=count)


def effective_trials(rates: NDArray[np.float64], episodes: int, level: float) -> float:
    """Return the number of independent trials whose rate is known as well as the mean of ``rates`` (P,).

    ``P * p (1 - p) / variance(rates)``, from P (all episodes of a task end alike) to P * G (they are independent),
    times ``(t_{PG-1} / t_{P-1})^2``, because the variance is itself an estimate from P tasks. With one episode a task
    it is P, and so the interval Wilson's own. Where all tasks have one rate of 0 or 1, nothing is known about how
    episodes of a task differ, and P is the safe answer.

    Source: Korn and Graubard 1998, "Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data"; with Wilson's interval, Dean and Pagano 2015.
    """
    count, total = len(rates), len(rates) * episodes
    spread, variance = float(rates.mean() * (1.0 - rates.mean())), float(rates.var())
    if total == count or count < 2 or spread == 0.0:
        return float(count)
    trials = min(count * spread / variance, total) if variance * total > count * spread else total
    tail = (1.0 + level) / 2.0
    known = student_quantile(tail, total - 1) / student_quantile(tail, count - 1)
    return float(trials * known**2)


def wilson_interval(rate: float, trials: float, level: float) -> tuple[float, float]:
    """Return Wilson's interval of a rate that was found in so many independent trials: all p with
    ``|rate - p| <= z sqrt(p (1 - p) / trials)``.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    z2 = normal_quantile((1.0 + level) / 2.0) ** 2
    middle = (rate + z2 / (2.0 * trials)) / (1.0 + z2 / trials)
    half = math.sqrt(z2 * (rate * (1.0 - rate) / trials + z2 / (4.0 * trials**2)))
    half /= 1.0 + z2 / trials
    return max(0.0, middle - half), min(1.0, middle + half)
