"""Bugs in policy losses that advantages do not weigh (``no_advantages``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from .mutant import Mutant

Function = Callable[..., Any]


def weighted_all_the_same(right: Any) -> Function:
    """The estimator's advantages weigh an auxiliary loss, as if it were the policy's."""

    def wrong(inputs: Any) -> Any:
        result = right(inputs)
        return replace(result, loss=result.loss * inputs.advantages)

    return wrong


def left_out_without_signal(right: Any) -> Function:
    """Tokens whose advantage is 0 are left out, as in policy losses that skip groups without a signal."""

    def wrong(inputs: Any) -> Any:
        result = right(inputs)
        return replace(result, loss=torch.where(inputs.advantages == 0, 0.0, result.loss))

    return wrong


def _mutant(bug: str, source: str, wrap: Function) -> Mutant:
    return Mutant(bug=bug, source=source, hook="rlhf_policy_losses", component="sft", wrap=wrap)


MUTANTS = (
    _mutant(
        "a loss with no_advantages is weighted with advantages",
        "no issue cited: a factor of all terms",
        weighted_all_the_same,
    ),
    _mutant(
        "a loss with no_advantages leaves out tokens without a signal",
        "no issue cited: a mask of another loss",
        left_out_without_signal,
    ),
)
