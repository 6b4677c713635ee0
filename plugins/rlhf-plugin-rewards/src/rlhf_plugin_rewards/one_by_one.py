"""Scoring samples that have nothing to do with each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlhf_core.contracts import RewardRequest, RewardResult


def score_each(
    requests: Sequence[RewardRequest], score: Callable[[RewardRequest], RewardResult]
) -> list[RewardResult | Exception]:
    """Return each sample's result, or what scoring it raised in its place: the others keep theirs."""
    results: list[RewardResult | Exception] = []
    for request in requests:
        try:
            results.append(score(request))
        except Exception as error:
            results.append(error)
    return results
