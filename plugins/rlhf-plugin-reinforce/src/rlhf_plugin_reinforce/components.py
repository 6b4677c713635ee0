"""The components: holders of their options that call the formulas and report what they did."""

from __future__ import annotations

from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.math import advantages_at_tokens, rewards_by_turn, whiten

from .config import ReinforceBaselineConfig, ReinforceConfig, RlooConfig
from .reinforce import reinforce_advantages
from .reinforce_baseline import group_baseline_advantages
from .rloo import leave_one_out_advantages


class Reinforce:
    """Discounted returns of single tokens, whitened over the batch."""

    def __init__(self, config: ReinforceConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        advantages = reinforce_advantages(
            batch.token_rewards,
            batch.action_mask,
            gamma=self.config.gamma,
            whitening=self.config.whiten,
        )
        return Advantages(advantages=advantages)


class ReinforceBaseline:
    """Rewards against the group's mean, whitened over the batch."""

    def __init__(self, config: ReinforceBaselineConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        by_turn = group_baseline_advantages(rewards_by_turn(batch), batch.group, batch.episode)
        advantages = advantages_at_tokens(by_turn, batch)
        if self.config.whiten != "none":
            full = self.config.whiten == "full"
            advantages = whiten(advantages, batch.action_mask, divide_by_std=full)
        return Advantages(advantages=advantages)


class Rloo:
    """Rewards against the mean of the group's other samples."""

    def __init__(self, config: RlooConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        by_turn = leave_one_out_advantages(rewards_by_turn(batch), batch.group, batch.episode)
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))
