"""The components: holders of their options that call the formulas and report what they did."""

from __future__ import annotations

from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.math import advantages_at_tokens, rewards_by_turn

from .config import DrGrpoConfig, GroupNormConfig
from .dr_grpo import group_centered_advantages
from .group_norm import group_normalized_advantages


class GroupNorm:
    """GRPO. The KL penalty, where it is in the reward, is added unscaled."""

    def __init__(self, config: GroupNormConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        by_turn = group_normalized_advantages(
            rewards_by_turn(batch),
            batch.group,
            batch.episode,
            eps=self.config.eps,
            correction=1 if self.config.std == "sample" else 0,
        )
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))


class DrGrpo:
    """Dr. GRPO, as far as the advantage goes."""

    def __init__(self, config: DrGrpoConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        by_turn = group_centered_advantages(rewards_by_turn(batch), batch.group, batch.episode)
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))
