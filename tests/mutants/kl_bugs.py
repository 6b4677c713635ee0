"""Bugs in KL estimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .mutant import Mutant

Function = Callable[..., Any]


def negative(right: Any) -> Function:
    """A bonus for leaving the reference."""
    return lambda log_ratio: -right(log_ratio)


def swapped(right: Any) -> Function:
    """The reference's log-probs minus the policy's: what peers write as ``ref - policy``."""
    return lambda log_ratio: right(-log_ratio)


def mean_of_the_batch(right: Any) -> Function:
    """Every token costs the mean of all."""
    return lambda log_ratio: right(log_ratio).mean().expand_as(log_ratio)


def one_number(right: Any) -> Function:
    return lambda log_ratio: right(log_ratio).sum()


def without_a_tangent(right: Any) -> Function:
    """``exp(-l) - 1 + l`` however far a token is."""
    del right
    return lambda log_ratio: (-log_ratio).exp() - 1 + log_ratio


def without_the_one(right: Any) -> Function:
    """``exp(-l) + l``: a token that policy and reference agree on costs a nat."""
    return lambda log_ratio: right(log_ratio) + 1.0


def without_a_gradient(right: Any) -> Function:
    return lambda log_ratio: right(log_ratio.detach()) + 0.0 * log_ratio


def _mutant(
    bug: str, source: str, wrap: Callable[[Any], Function], component: str = "k3"
) -> Mutant:
    return Mutant(bug=bug, source=source, hook="rlhf_kl_estimators", component=component, wrap=wrap)


MUTANTS = (
    _mutant("a penalty is a bonus", "no issue cited: a sign", negative),
    _mutant("the half square is negative", "no issue cited: a sign", negative, "k2"),
    _mutant("the log-ratio is upside down", "the class of TRL#5731, a wrong divergence", swapped),
    _mutant(
        "the plain log-ratio is upside down",
        "the class of TRL#5731, a wrong divergence",
        swapped,
        "k1",
    ),
    _mutant(
        "every token costs the batch's mean", "no issue cited: mean for sum", mean_of_the_batch
    ),
    _mutant("an estimate for all tokens", "no issue cited: mean for sum", one_number),
    _mutant(
        "a far token makes the loss infinite", "verl before its clamp of k3", without_a_tangent
    ),
    _mutant("equal policies have a divergence", "no issue cited: a constant", without_the_one),
    _mutant(
        "the estimate has no gradient", "no issue cited: no_grad around it", without_a_gradient
    ),
)
