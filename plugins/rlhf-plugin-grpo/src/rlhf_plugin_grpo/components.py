"""The components: holders of their options that call the formulas and report what they did."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_core import ConfigError
from rlhf_core.contracts import Advantages, Metric, RewardBatch
from rlhf_core.math import advantages_at_tokens, group_mean, rewards_by_turn, whiten

from .config import (
    DrGrpoConfig,
    GdpoConfig,
    GigpoConfig,
    GroupNormConfig,
    GrpoPasskConfig,
    HierarchicalGrpoConfig,
    MaxRlConfig,
)
from .dr_grpo import group_centered_advantages
from .gdpo import decoupled_advantages
from .gigpo import discounted_by_turn, step_advantages, step_groups
from .group_norm import group_normalized_advantages
from .grpo_passk import analytic_passk_advantages, best_margin_advantages
from .hierarchical_grpo import first_observations, hierarchical_advantages, peer_groups
from .maxrl import mean_normalized_advantages


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


class GrpoPassk:
    """What a sample adds to the best of a set."""

    def __init__(self, config: GrpoPasskConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        config, by_turn = self.config, rewards_by_turn(batch)
        if config.advantage == "margin":
            by_turn = best_margin_advantages(
                by_turn,
                batch.group,
                batch.episode,
                divide_by_std=config.std == "sample",
                eps=config.eps,
            )
        else:
            correct = group_mean(batch.rewards, batch.episode) > config.correct_above
            of_sample = analytic_passk_advantages(correct, batch.group, batch.episode, k=config.k)
            by_turn = of_sample.to(by_turn.dtype)[:, None].expand_as(by_turn)
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))


class MaxRl:
    """Rewards against the group's mean, divided by it."""

    def __init__(self, config: MaxRlConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        by_turn = mean_normalized_advantages(rewards_by_turn(batch), batch.group, batch.episode)
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))


class Gdpo:
    """Each reward normalized apart, then summed, then whitened."""

    def __init__(self, config: GdpoConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        """Raises:
        ConfigError: the batch has no named rewards.
        """
        named, weights = batch.rewards_by_name, batch.reward_weights
        if not named:
            raise ConfigError(
                "--estimator gdpo normalizes each reward by itself; this run has none with a name, so its rewards come "
                "from the environment alone. Add some with --reward, or choose --estimator grpo."
            )
        of_sample = decoupled_advantages(
            named, weights, batch.group, batch.episode, eps=self.config.eps
        )
        by_turn = of_sample.to(batch.rewards.dtype)[:, None].expand_as(rewards_by_turn(batch))
        advantages = advantages_at_tokens(by_turn, batch)
        if self.config.whiten != "none":
            full = self.config.whiten == "full"
            advantages = whiten(advantages, batch.action_mask, divide_by_std=full)
        seen = sum(weights.get(name, 1.0) * column.nan_to_num() for name, column in named.items())
        unseen = Metric((batch.rewards - seen).abs().sum(), len(batch.rewards))
        return Advantages(advantages=advantages, metrics={"gdpo/reward_unseen": unseen})


class Gigpo:
    """Episodes of a prompt compared, plus turns that started from the same text compared."""

    def __init__(self, config: GigpoConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        assert batch.observation is not None, "gigpo is registered with needs={'observations'}"
        config, mask, by_turn = self.config, batch.action_mask, rewards_by_turn(batch)
        groups = step_groups(batch.observation, batch.turn, mask, by_turn.shape[1])
        discounted = discounted_by_turn(by_turn, (groups >= 0).sum(dim=1), gamma=config.gamma)
        of_turn, size = step_advantages(
            discounted, groups, divide_by_std=config.norm == "std", eps=config.eps
        )
        by_turn = self._of_episode(batch) + config.step_weight * of_turn  # (B, K)
        shared = Metric((size > 1).sum(), (size > 0).sum())
        return Advantages(
            advantages=advantages_at_tokens(by_turn, batch), metrics={"gigpo/shared_turns": shared}
        )

    def _of_episode(self, batch: RewardBatch) -> Tensor:
        rewards = batch.rewards[:, None]  # (B, 1)
        if self.config.norm == "none":
            return group_centered_advantages(rewards, batch.group, batch.episode)
        return group_normalized_advantages(
            rewards, batch.group, batch.episode, eps=self.config.eps, correction=1
        )


class HierarchicalGrpo:
    """Attempts at one problem compared with each other, problems with other problems."""

    def __init__(self, config: HierarchicalGrpoConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        assert batch.observation is not None, (
            "hierarchical_grpo is registered with needs={'observations'}"
        )
        first = first_observations(batch.observation, batch.action_mask)
        peers = peer_groups(first, batch.group, batch.episode)
        by_turn = hierarchical_advantages(rewards_by_turn(batch), peers)
        alone = torch.bincount(peers)[peers] == 1  # (B,)
        return Advantages(
            advantages=advantages_at_tokens(by_turn, batch),
            metrics={"hierarchical_grpo/without_peers": Metric(alone.sum(), len(alone))},
        )
