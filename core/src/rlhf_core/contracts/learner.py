"""What becomes of a rollout batch: model outputs, advantages, updates. A runtime may take a step elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..batch.metric import Metrics
from ..batch.trajectory_columns import TrajectoryColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnRequest:
    """One step's batch, and what of the loop's state learning from it depends on."""

    step: int
    batch: TrajectoryColumns
    kl_coef: float
    entropy_coef: float
    """Of the bonus as it is in force."""
    supervised_taken: int
    """Position in the supervised rows, over all their epochs."""
    skipped_updates: Mapping[str, int]
    """Role -> updates in a row whose gradient was not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnOutcome:
    """What a step's learning leaves behind."""

    metrics: Metrics
    score_s: float
    """Seconds of model outputs and advantages, until the updates began."""
    train_s: float
    """Seconds of the updates."""
    policy_changed: bool
    """False while only the critic warms up."""
    supervised_taken: int
    skipped_updates: Mapping[str, int]


class Learner(Protocol):
    """Learns from batches, one after the other."""

    async def learn(self, request: LearnRequest) -> LearnOutcome:
        """Ask the models for their outputs, estimate advantages, and update the roles.

        Raises:
            NonFiniteError: something that is not finite would have been trained on, or too many updates in a row had
                a gradient that is not finite.
            RLHFError: a role failed, or sampler and trainer disagree about the sampled tokens.
        """
        ...
