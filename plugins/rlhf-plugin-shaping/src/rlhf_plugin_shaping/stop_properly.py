"""Samples that were cut off at the length limit earn less, or a fixed penalty: ProRL's stop-properly rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Metric, Metrics, RolloutInfo, TrajectoryColumns
from rlhf_core.lazy import Bool, Float

from .episodes import truncated_episodes
from .stateless import Stateless


class StopProperlyConfig(Config):
    coef: float = Field(
        0.0,
        ge=-1e6,
        le=1.0,
        description="of truncated samples: from 0 to 1, what their reward is multiplied by; below 0, what it becomes",
    )


def stop_properly_reward(
    reward: Float[np.ndarray, " b"], truncated: Bool[np.ndarray, " b"], *, coef: float
) -> Float[np.ndarray, " b"]:
    """Return ``coef * reward`` where ``truncated`` if coef >= 0, else ``coef`` there; other rewards stay.

    1 changes nothing, 0 takes everything away. A negative reward gets *better* with a coefficient below 1: where
    rewards can be negative, set a fixed penalty instead.

    Source: ProRL v2, as OpenRLHF 0.11.2 has it (``stop_properly_penalty_coef``).
    """
    return np.where(truncated, reward * coef if coef >= 0 else coef, reward)


class StopProperly(Stateless):
    """Applies the rule to what truncated episodes earned in all, the rewards of their turns included."""

    def __init__(self, config: StopProperlyConfig) -> None:
        self.config = config

    def shape(
        self, batch: TrajectoryColumns, info: RolloutInfo
    ) -> tuple[TrajectoryColumns, Metrics]:
        del info
        truncated = truncated_episodes(batch)
        at_turns = np.repeat(truncated, batch.num_turns)  # (U,)
        # A fixed penalty replaces the total: it stands in the score, and nothing is left at the turns.
        kept_at_turns = max(self.config.coef, 0.0)
        shaped = replace(
            batch,
            reward=stop_properly_reward(batch.reward, truncated, coef=self.config.coef).astype(
                np.float32
            ),
            turn_rewards=stop_properly_reward(
                batch.turn_rewards, at_turns, coef=kept_at_turns
            ).astype(np.float32),
        )
        return shaped, {"stop_properly/changed": Metric(float(truncated.sum()), len(batch))}


COMPONENT = Component(
    name="stop_properly",
    factory=StopProperly,
    config=StopProperlyConfig,
    summary="scales or replaces the reward of truncated samples (ProRL v2)",
)
