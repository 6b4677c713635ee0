"""DAPO's dynamic sampling: a filter that keeps prompts that are neither solved nor hopeless.

The loop draws other prompts in place of those that are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, model_validator

from rlhf_core import Component, Config, ConfigError
from rlhf_core.capabilities import JUDGES_REWARDS
from rlhf_core.contracts import RolloutInfo, TrajectoryColumns
from rlhf_core.lazy import np, torch
from rlhf_core.math import group_mean


class DynamicSamplingConfig(Config):
    low: float = Field(
        0.0, ge=-1e6, le=1e6, description="number that the mean reward has to exceed"
    )
    high: float = Field(
        1.0, ge=-1e6, le=1e6, description="number that the mean reward has to stay below"
    )
    reward: str | None = Field(
        None,
        description="name of the reward that counts, before shapers; unset: the total reward after the shapers",
    )

    @model_validator(mode="after")
    def _not_empty(self) -> DynamicSamplingConfig:
        if self.low >= self.high:
            raise ValueError(f"low is {self.low:g}, expected less than high = {self.high:g}")
        return self

    def rewards_named(self) -> Mapping[str, str]:
        """The reward that counts."""
        return {} if self.reward is None else {self.reward: "reward"}


class DynamicSampling:
    """Sample filter that keeps a group if and only if ``low < mean reward of its episodes < high``.

    A group in which a sample lacks the named reward is kept: nothing is known of it.

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, equation 11.
    """

    def __init__(self, config: DynamicSamplingConfig) -> None:
        self.config = config

    def keep(self, group: TrajectoryColumns, info: RolloutInfo) -> str | None:
        """Return None, ``too_hard`` or ``too_easy``.

        Raises:
            ConfigError: no reward has the name that the options give.
        """
        del info
        rewards = self._rewards(group)
        if np.isnan(rewards).any():
            return None
        one = torch.zeros(len(group), dtype=torch.int64)
        exact = torch.tensor(rewards, dtype=torch.float64)
        # Rewards are float32, so bounds such as 0.1 have to be rounded to float32 too, to compare equal.
        mean = np.float32(group_mean(exact, one, torch.tensor(group.episode))[0])
        if mean <= np.float32(self.config.low):
            return "too_hard"
        return "too_easy" if mean >= np.float32(self.config.high) else None

    def _rewards(self, group: TrajectoryColumns) -> np.ndarray:
        name = self.config.reward
        if name is None:
            return group.total_reward
        if name not in group.rewards:
            raise ConfigError(
                f"rollout.dynamic_sampling.reward is {name!r}; the rewards of this run are "
                f"{', '.join(group.rewards) or 'none with a name'}",
                code="reward/unknown",
            )
        return group.rewards[name]


COMPONENT = Component(
    name="dynamic_sampling",
    factory=DynamicSampling,
    config=DynamicSamplingConfig,
    summary="keeps prompts whose mean reward is strictly inside a range (DAPO)",
    needs=frozenset({"group>=2"}),
    provides=frozenset({JUDGES_REWARDS}),
)
