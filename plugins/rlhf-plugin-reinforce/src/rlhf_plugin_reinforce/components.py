"""The components: holders of their options that call the formulas and report what they did."""

from __future__ import annotations

import torch

from rlhf_core.contracts import Advantages, Metric, RewardBatch
from rlhf_core.math import (
    advantages_at_tokens,
    group_size,
    reward_to_go,
    rewards_by_turn,
    token_advantages,
    whiten,
)

from .config import (
    FlashReinforceConfig,
    OpoConfig,
    OptimalTokenBaselineConfig,
    RaftConfig,
    ReinforceBaselineConfig,
    ReinforceConfig,
    RemaxConfig,
    RlooConfig,
)
from .flash_reinforce import batch_baseline_advantages
from .opo import length_weighted_advantages
from .optimal_token_baseline import gradient_energy, optimal_token_advantages
from .raft import best_of_group, rewarded
from .reinforce import reinforce_advantages
from .reinforce_baseline import group_baseline_advantages
from .remax import greedy_baseline_advantages
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


class FlashReinforce:
    """Rewards against the mean of the whole batch."""

    def __init__(self, config: FlashReinforceConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        by_turn = batch_baseline_advantages(rewards_by_turn(batch), batch.episode)
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))


class Remax:
    """Rewards against that of the greedy response."""

    def __init__(self, config: RemaxConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        greedy = batch.greedy_rewards
        assert greedy is not None, "remax is registered with needs={'greedy_rewards'}"
        by_turn = greedy_baseline_advantages(rewards_by_turn(batch), greedy)
        share = 1.0 / group_size(batch.group)  # (B,) each prompt's rows add up to 1
        metrics = {"remax/greedy_reward": Metric((greedy * share).sum(), share.sum())}
        return Advantages(advantages=advantages_at_tokens(by_turn, batch), metrics=metrics)


class Opo:
    """Rewards against the group's mean, weighted by length."""

    def __init__(self, config: OpoConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        lengths = batch.action_mask.sum(dim=1)
        by_turn = length_weighted_advantages(
            rewards_by_turn(batch), lengths, batch.group, batch.episode
        )
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))


class OptimalTokenBaseline:
    """Rewards against a baseline of their own at each position."""

    def __init__(self, config: OptimalTokenBaselineConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        mask, old, squares = batch.action_mask, batch.old_logprobs, batch.sum_pi_squared
        assert old is not None, "optimal_token_baseline is registered with needs={'old_logprobs'}"
        assert squares is not None, "... and with needs={'sum_pi_squared'}"
        advantages = optimal_token_advantages(
            token_advantages(rewards_by_turn(batch), mask, batch.turn),
            gradient_energy(old, squares, mask),
            mask,
            batch.group,
            batch.episode,
            carry=self.config.tail == "carry",
        )
        if batch.kl_penalty is not None:
            advantages = advantages + reward_to_go(batch.kl_penalty, mask)
        return Advantages(advantages=advantages)


class Raft:
    """1 for the samples that are kept, 0 for the others."""

    def __init__(self, config: RaftConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        if self.config.keep == "best":
            kept = best_of_group(batch.rewards, batch.group, batch.episode)
        else:
            kept = rewarded(batch.rewards, batch.episode, self.config.threshold)
        share = 1.0 / group_size(batch.episode)  # (B,) each episode's rows add up to 1
        metrics = {"raft/kept": Metric(torch.where(kept, share, 0.0).sum(), share.sum())}
        of_sample = kept.to(batch.rewards.dtype)[:, None]  # (B, 1)
        advantages = token_advantages(
            of_sample, batch.action_mask, torch.zeros_like(batch.turn), batch.kl_penalty
        )
        return Advantages(advantages=advantages, metrics=metrics)
