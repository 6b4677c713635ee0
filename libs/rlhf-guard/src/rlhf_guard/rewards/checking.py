"""Call of a reward, and the check that it returns one finite number per sample."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from rlhf_core.contracts.reward import Reward, RewardRequest, RewardResult
from rlhf_core.errors import PluginError
from rlhf_core.problem import Problem, ProblemKind, problem_of, shown

from .outcome import RewardOutcome

SUM_TOLERANCE = 1e-5
"""Largest difference between a reward and the sum of its parts, as a share of the parts' sizes, at least of 1: parts
and reward may come from float32."""


class NotANumber(ValueError):
    """A value that is no score; the text describes the value."""


def require_score(reward: Reward) -> Reward:
    """Return the reward, which a user's program may have given as an object of any class.

    Raises:
        PluginError: it has no method ``score``, or one that takes other arguments than the requests alone.
    """
    if not callable(getattr(reward, "score", None)):
        raise PluginError(
            f"objects of {type(reward).__name__} have no method score; expected a function of a response, or an "
            "object with score(self, requests) that returns one RewardResult for each. Of an object that is called "
            "itself give the method: object.__call__",
            code="reward/not-a-function",
        )
    try:
        signature = inspect.signature(reward.score)
    except (TypeError, ValueError):
        return reward  # what is written in C may say nothing of its arguments
    try:
        signature.bind("requests")
    except TypeError:
        raise PluginError(
            f"{type(reward).__name__}.score takes ({', '.join(signature.parameters)}); expected score(self, requests), "
            "which returns one RewardResult for each request. A function may take parts of a request by name, such "
            "as response, and so may a bound method that is given in the place of the object",
            code="reward/wrong-arguments",
        ) from None
    return reward


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
        # Elsewhere None means that a reward is not for samples of this kind.
        none = ", which is 0 where the reward does not apply" if result.reward is None else ""
        return RewardOutcome(problem=_returned(f"{error}; expected one finite number{none}"))
    try:
        metrics = _numbers(result.metrics)
        step_rewards = _step_rewards(result.step_rewards, reward)
    except NotANumber as error:
        return RewardOutcome(reward=None, problem=_returned(str(error)))
    return RewardOutcome(reward=reward, metrics=metrics, step_rewards=step_rewards)


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


def _step_rewards(parts: Any, reward: float) -> tuple[tuple[int, float], ...]:
    """Return the parts of a reward as pairs of int and float."""
    try:
        pairs = tuple((operator.index(action), finite_number(part)) for action, part in parts)
    except (TypeError, ValueError) as error:
        # NotANumber is a ValueError, and says what the part is.
        raise NotANumber(
            f"step_rewards of the wrong form ({error}); expected pairs of an action's index and a finite number"
        ) from None
    if not pairs:
        return ()
    total = math.fsum(part for _, part in pairs)
    size = math.fsum(abs(part) for _, part in pairs)
    if not math.isclose(total, reward, rel_tol=0.0, abs_tol=SUM_TOLERANCE * max(size, 1.0)):
        raise NotANumber(
            f"step_rewards that add up to {total:g} and a reward of {reward:g}; expected the same number. Put what is "
            "left on the last action, or build the result with RewardResult.at_steps"
        )
    return pairs


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
