"""ProRL's stop-properly rule: samples that were cut off at the length limit earn less, or a fixed penalty."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Metrics, RolloutInfo, TrajectoryColumns
from rlhf_core.lazy import Bool, Float, np

from .episodes import over_samples
from .stateless import Stateless


class StopProperlyConfig(Config):
    coef: float = Field(
        0.0,
        ge=-1e6,
        le=1.0,
        description="from 0 to 1: factor of the reward of truncated samples; below 0: number that replaces their "
        "reward",
    )


def stop_properly_reward(
    reward: Float[np.ndarray, " b"], truncated: Bool[np.ndarray, " b"], *, coef: float
) -> Float[np.ndarray, " b"]:
    """Return ``coef * reward`` where ``truncated`` if coef >= 0, else ``coef`` there; other rewards stay.

    A ``coef`` of 1 changes nothing, 0 takes everything away. A coefficient in [0, 1) makes a negative reward
    *better*: where rewards can be negative, set a fixed penalty instead.

    Source: ProRL v2, as OpenRLHF 0.11.2 has it (``stop_properly_penalty_coef``).
    """
    return np.where(truncated, reward * coef if coef >= 0 else coef, reward)


class StopProperly(Stateless):
    """Reward shaper that applies the rule to the total reward of truncated episodes, turn rewards included."""

    def __init__(self, config: StopProperlyConfig) -> None:
        self.config = config

    def shape(
        self, batch: TrajectoryColumns, info: RolloutInfo
    ) -> tuple[TrajectoryColumns, Metrics]:
        del info
        truncated = batch.episode_truncated
        at_turns = np.repeat(truncated, batch.num_turns)  # (turns of all rows,)
        # A fixed penalty replaces the total: the score becomes the penalty, and the turns keep no reward.
        # The same holds for the parts of the score at single tokens.
        kept_at_turns = max(self.config.coef, 0.0)
        shaped = replace(
            batch,
            reward=stop_properly_reward(batch.reward, truncated, coef=self.config.coef).astype(
                np.float32
            ),
            turn_rewards=stop_properly_reward(
                batch.turn_rewards, at_turns, coef=kept_at_turns
            ).astype(np.float32),
            step_rewards=stop_properly_reward(
                batch.step_rewards, np.repeat(truncated, batch.num_steps), coef=kept_at_turns
            ).astype(np.float32),
        )
        return shaped, {"stop_properly/changed": over_samples(truncated, batch.episode)}


COMPONENT = Component(
    name="stop_properly",
    factory=StopProperly,
    config=StopProperlyConfig,
    summary="scales or replaces the reward of truncated samples (ProRL v2)",
)
