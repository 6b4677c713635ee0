"""Call of a reward, and the check that it returns one finite number per sample."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from ..contracts.reward import Reward, RewardRequest, RewardResult
from .outcome import Problem, ProblemKind, RewardOutcome, problem_of, shown


class NotANumber(ValueError):
    """A value that is no score; the text describes the value."""


async def score_checked(
    reward: Reward, requests: Sequence[RewardRequest]
) -> list[RewardOutcome] | Problem:
    """Return one outcome per request, or one problem if the whole call failed.

    A reward may return an exception in the place of a result. The exception then concerns this sample only, and the
    other samples keep their scores.
    """
    try:
        returned: Any = reward.score(requests)
        results = await returned if inspect.isawaitable(returned) else returned
    except BaseException as error:  # sys.exit() of a user's function is an error of that function
        return problem_of(error)
    return outcomes_of(results, len(requests))


def outcomes_of(results: Any, count: int) -> list[RewardOutcome] | Problem:
    """Return one outcome for each of ``count`` samples, or one problem if ``results`` is not a list of that many."""
    if not isinstance(results, Sequence) or isinstance(results, str | bytes):
        return _returned(f"{_what(results)}; expected a list of {count} RewardResult")
    if len(results) != count:
        return _returned(f"{len(results)} results for {count} samples")
    return [outcome_of(result) for result in results]


def outcome_of(result: Any) -> RewardOutcome:
    """Return the outcome of the result for one sample; the result of a wrong form becomes a problem."""
    if isinstance(result, BaseException):
        return RewardOutcome(problem=problem_of(result))
    if not isinstance(result, RewardResult):
        return RewardOutcome(problem=_returned(f"{_what(result)}; expected a RewardResult"))
    try:
        reward = finite_number(result.reward)
    except NotANumber as error:
        return RewardOutcome(problem=_returned(f"{error}; expected one finite number"))
    try:
        metrics = _numbers(result.metrics)
    except NotANumber as error:
        return RewardOutcome(reward=None, problem=_returned(str(error)))
    return RewardOutcome(reward=reward, metrics=metrics)


def finite_number(value: Any) -> float:
    """Return ``value`` as a float; booleans count as 0 and 1, 0-d arrays and tensors as their item.

    Raises:
        NotANumber: the value is no number, or NaN, infinite, or an integer beyond the range of a float.
    """
    number = value
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        number = value.item()
    if not isinstance(number, Real):
        raise NotANumber(_what(value))
    try:
        converted = float(number)
    except OverflowError:
        raise NotANumber(
            f"an integer beyond the range of a float ({_what(value)[:60]}...)"
        ) from None
    if not math.isfinite(converted):
        raise NotANumber(str(converted))
    return converted


def _numbers(metrics: Any) -> dict[str, float]:
    """Return the metrics as floats. A metric of None or NaN is left out, as not reported for this sample."""
    if not isinstance(metrics, Mapping):
        raise NotANumber(f"{_what(metrics)} as metrics; expected a dict of numbers")
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise NotANumber(f"a metric named {shown(name)}; expected text")
        if value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        try:
            numbers[name] = finite_number(value)
        except NotANumber as error:
            raise NotANumber(f"{error} as metric {name!r}; expected a finite number") from None
    return numbers


def _returned(text: str) -> Problem:
    return Problem(kind=ProblemKind.RETURNED, text=f"returned {text}")


def _what(value: Any) -> str:
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return f"a {type(value).__name__} of shape {tuple(shape)}"
    return f"{shown(value)} ({type(value).__name__})"
