"""Bugs in evaluation metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .mutant import Mutant

Function = Callable[..., Any]


def averages_over_the_run(right: Any) -> Function:
    """The mean of all evaluations so far."""
    seen: list[Mapping[str, float]] = []

    def wrong(episodes: Any) -> dict[str, float]:
        seen.append(right(episodes))
        return {
            name: sum(one.get(name, 0.0) for one in seen) / len(seen) for name in right(episodes)
        }

    return wrong


def first_answer_wins(right: Any) -> Function:
    """The first sample decides, not the vote."""

    def wrong(episodes: Any) -> dict[str, float]:
        (name,) = right(episodes)
        firsts = [
            bool(episodes.passed[episodes.prompt.tolist().index(prompt)])
            for prompt in sorted(set(episodes.prompt.tolist()))
        ]
        return {name: sum(firsts) / len(firsts)}

    return wrong


def nan_where_nothing_passes(right: Any) -> Function:
    """0 / 0 of the episodes that pass."""

    def wrong(episodes: Any) -> dict[str, float]:
        return {
            name: value if episodes.passed.any() else math.nan
            for name, value in right(episodes).items()
        }

    return wrong


def sorts_in_place(right: Any) -> Function:
    def wrong(episodes: Any) -> Any:
        found = right(episodes)
        episodes.reward.sort()
        return found

    return wrong


def _mutant(bug: str, source: str, wrap: Callable[[Any], Function]) -> Mutant:
    return Mutant(bug=bug, source=source, hook="rlhf_eval_metrics", component="majority", wrap=wrap)


MUTANTS = (
    _mutant(
        "an evaluation is averaged with those before it",
        "no issue cited: a running mean",
        averages_over_the_run,
    ),
    _mutant("the first sample decides a vote", "no issue cited: an index", first_answer_wins),
    _mutant(
        "a metric is nan where nothing passes", "no issue cited: 0 / 0", nan_where_nothing_passes
    ),
    _mutant(
        "the rewards are sorted in place",
        "the class of TRL#5147, a write into memory of others",
        sorts_in_place,
    ),
)
