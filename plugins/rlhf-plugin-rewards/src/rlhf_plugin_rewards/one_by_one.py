"""Scoring of samples one by one, so that an error concerns its own sample only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlhf_core.contracts import RewardRequest, RewardResult


def score_each(
    requests: Sequence[RewardRequest], score: Callable[[RewardRequest], RewardResult]
) -> list[RewardResult | Exception]:
    """Return each sample's result; for a sample whose scoring raised an exception, this exception."""
    results: list[RewardResult | Exception] = []
    for request in requests:
        try:
            results.append(score(request))
        except Exception as error:
            results.append(error)
    return results
