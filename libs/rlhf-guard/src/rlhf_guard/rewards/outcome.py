"""Outcome of one sample in one reward: a score, or the problem because of which there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf_core.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOutcome:
    """Outcome of one sample in one reward. Exactly one of ``reward`` and ``problem`` is set."""

    reward: float | None = None
    """Score of the sample, finite and unweighted."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    step_rewards: tuple[tuple[int, float], ...] = ()
    """Parts of the score on single actions, as ``RewardResult.step_rewards``."""
    problem: Problem | None = None
