"""Bugs in learning-rate schedules."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .mutant import Mutant

Function = Callable[..., Any]


def counts_its_calls(right: Any) -> Function:
    """The share of the number of calls so far, as of a scheduler that is stepped."""
    number = itertools.count()

    def wrong(point: Any) -> float:
        update = min(point.warmup_updates + next(number), point.total_updates)
        return float(right(replace(point, update=update)))

    return wrong


def warm_up_again(right: Any) -> Function:
    """A warm-up of the schedule's own after the core's."""

    def wrong(point: Any) -> float:
        done = point.update - point.warmup_updates
        return float(right(point)) * min(1.0, (done + 1) / 5)

    return wrong


def ends_at_zero(right: Any) -> Function:
    def wrong(point: Any) -> float:
        return float(right(replace(point, min_lr_ratio=0.0)))

    return wrong


def ends_one_update_early(right: Any) -> Function:
    """Negative at the end: the last update counts one more than there are."""

    def wrong(point: Any) -> float:
        length = max(1, point.total_updates - point.warmup_updates)
        return 1.0 - (1.0 - point.min_lr_ratio) * (point.update + 1 - point.warmup_updates) / length

    return wrong


def nan_of_nothing(right: Any) -> Function:
    """0 / 0 where the warm-up is the whole run."""

    def wrong(point: Any) -> float:
        is_empty = point.total_updates == point.warmup_updates
        return float("nan") if is_empty else float(right(point))

    return wrong


def _mutant(bug: str, source: str, wrap: Callable[[Any], Function]) -> Mutant:
    return Mutant(bug=bug, source=source, hook="rlhf_lr_schedules", component="linear", wrap=wrap)


MUTANTS = (
    _mutant(
        "a schedule counts its calls, so a resumed run begins it again",
        "the class of a scheduler that is stepped",
        counts_its_calls,
    ),
    _mutant("a schedule warms up once more", "no issue cited: a product of two", warm_up_again),
    _mutant("the floor is ignored", "no issue cited: an option without effect", ends_at_zero),
    _mutant(
        "the rate is negative after the last update",
        "no issue cited: off by one",
        ends_one_update_early,
    ),
    _mutant("a run that is all warm-up has the rate nan", "no issue cited: 0 / 0", nan_of_nothing),
)
