"""Filter of prompts whose samples all earned the same: compared with each other they teach nothing."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.capabilities import JUDGES_REWARDS
from rlhf_core.contracts import RolloutInfo, TrajectoryColumns
from rlhf_core.lazy import torch
from rlhf_core.math import group_mean, group_std


class ZeroVarianceConfig(Config):
    max_std: float = Field(
        1e-6,
        ge=0.0,
        le=1e6,
        description="largest standard deviation at which a prompt's samples count as equal, in units of the reward",
    )


class ZeroVariance:
    """Sample filter that drops a group if the standard deviation of its episodes' total rewards is at most ``max_std``.

    Equal rewards have a standard deviation of exactly 0, also if they are not exact in binary, such as 0.1. Equal sums
    of several rewards may differ by rounding, which ``max_std`` covers. A group of one is dropped.
    """

    def __init__(self, config: ZeroVarianceConfig) -> None:
        self.config = config

    def keep(self, group: TrajectoryColumns, info: RolloutInfo) -> str | None:
        """Return None or ``same_reward``."""
        del info
        rewards = torch.tensor(group.total_reward, dtype=torch.float64)
        one = torch.zeros(len(group), dtype=torch.int64)
        episode = torch.tensor(group.episode)
        # Samples are compared, not their rows: the deviation is that of the episodes' means.
        std = float(group_std(group_mean(rewards, episode), one, episode)[0])
        return "same_reward" if std <= self.config.max_std else None


COMPONENT = Component(
    name="zero_variance",
    factory=ZeroVariance,
    config=ZeroVarianceConfig,
    summary="drops prompts whose samples all earned the same",
    needs=frozenset({"group>=2"}),
    provides=frozenset({JUDGES_REWARDS}),
)
