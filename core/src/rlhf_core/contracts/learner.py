"""Learners: from a rollout batch to advantages and updates, one call a step, which a runtime may run in a process of
its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..batch.metric import Metrics
from ..batch.trajectory_columns import TrajectoryColumns
from ..lazy import NDArray, np


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnRequest:
    """One step's batch, and the part of the loop's state that learning depends on."""

    step: int
    """Number of the step, from 1."""
    batch: TrajectoryColumns
    """The step's samples, scored."""
    judged: NDArray[np.bool_] | None = None
    """(B,) True for the samples whose rewards count; the others train the terms of the loss that need no advantages.
    None: all count."""
    kl_coef: float
    """Factor of the KL in this step."""
    entropy_coef: float
    """Coefficient of the entropy bonus in this step: 0 while an adapted bonus rests."""
    supervised_taken: int
    """Position in the supervised rows, over all their epochs."""
    skipped_updates: Mapping[str, int]
    """Role -> updates in a row whose gradient was not finite."""
    lr_factors: Mapping[str, float] = field(default_factory=dict)
    """Role -> ``StepPlan.lr_factor`` of its updates; 1 for a role that is not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnOutcome:
    """The result of learning from one step's batch: metrics, times, and the loop's new state."""

    metrics: Metrics
    """Metrics of the step."""
    score_s: float
    """Seconds that log-probs, values and advantages took."""
    train_s: float
    """Seconds that the updates took."""
    policy_changed: bool
    """False while only the critic warms up."""
    supervised_taken: int
    """Position in the supervised rows after the step."""
    skipped_updates: Mapping[str, int]
    """Role -> updates in a row whose gradient was not finite."""
    columns: Mapping[str, NDArray[np.float32]] | None = None
    """(sum of A,) each: advantages, log-probs, values and entropies of the batch's actions, from before the updates;
    None unless an observer of the run provides ``hears_tokens``."""


class Learner(Protocol):
    """Learns from batches, one after the other."""

    async def learn(self, request: LearnRequest) -> LearnOutcome:
        """Compute log-probs and values of the batch, estimate advantages, and update the roles.

        Raises:
            NonFiniteError: log-probs, values, advantages or returns are not finite, or too many updates in a row had a
                gradient that is not finite.
            RLHFError: a role failed, or sampler and trainer disagree about the sampled tokens.
        """
