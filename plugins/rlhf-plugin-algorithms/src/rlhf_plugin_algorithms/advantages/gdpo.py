"""GDPO: each reward is normalized within its group by itself, and only then are the rewards summed.

Normalizing the sum instead, as GRPO does, lets the reward with the largest spread decide and gives samples with
different merits the same advantage.

1. ``A_i = sum over rewards n of w_n (r_{n,i} - mean(r_n)) / (std(r_n) + eps)`` within each prompt, at all tokens of i;
2. plus the KL penalty still to come, where the KL is in the reward;
3. ``A <- (A - mean(A)) / std(A)`` over all action tokens of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from rlhf_core import Component, Config, ConfigError
from rlhf_core.contracts import Advantages, Metric, RewardBatch
from rlhf_core.lazy import Float, Int, torch
from rlhf_core.math import advantages_at_tokens, group_mean, group_std, rewards_by_turn, whiten


class GdpoConfig(Config):
    eps: float = Field(
        1e-4, ge=1e-6, le=1.0, description="added to the standard deviation, in units of the reward"
    )
    whiten: Literal["full", "mean", "none"] = Field(
        "full",
        description="normalization over all action tokens of the batch. full: zero mean and unit variance; mean: "
        "zero mean only; none: no change",
    )


def decoupled_advantages(
    rewards_by_name: Mapping[str, Float[torch.Tensor, " b"]],
    weights: Mapping[str, float],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
    *,
    eps: float,
) -> Float[torch.Tensor, " b"]:
    """Return ``A_i = sum over rewards n of w_n (r_{n,i} - mean(r_n)) / (std(r_n) + eps)`` within each group; float64.

    Mean and standard deviation (n - 1) are over the samples of the group that have the reward; a sample without it,
    which is NaN there, gets nothing from it. One reward of weight 1 gives GRPO's advantage. Equal rewards in a group
    give exactly 0, and so does a group of one.

    Args:
        rewards_by_name: r_n, each single reward, unweighted; NaN where a sample has none.
        weights: w_n by the same names; 1 where one is missing.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once.
        eps: added to each standard deviation, in units of the reward.

    Source: Liu et al. 2026 (GDPO), arXiv:2601.05242. Normalizing over the batch, its second step, is the caller's.
    """
    total = torch.zeros(group.shape, dtype=torch.float64, device=group.device)
    for name, rewards in rewards_by_name.items():
        has = ~rewards.isnan()
        # The groups and episodes that are left are numbered anew: the statistics expect dense indices.
        dense_group, dense_episode = (
            torch.unique(index[has], return_inverse=True)[1] for index in (group, episode)
        )
        r = rewards[has]  # (number that have it,)
        deviation = r - group_mean(r, dense_group, dense_episode)
        normalized = deviation / (group_std(r, dense_group, dense_episode) + eps)
        total[has] += weights.get(name, 1.0) * normalized.to(torch.float64)
    return total


class Gdpo:
    """Advantage estimator ``gdpo``."""

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
                "from the environment alone. Add some with --reward, or choose --estimator grpo.",
                code="config/no-named-rewards",
            )
        of_sample = decoupled_advantages(  # (B,)
            named, weights, batch.group, batch.episode, eps=self.config.eps
        )
        by_turn = of_sample.to(batch.rewards.dtype)[:, None].expand_as(rewards_by_turn(batch))
        advantages = advantages_at_tokens(by_turn, batch)
        if self.config.whiten != "none":
            # The paper's second step: batch-wise advantage normalization.
            full = self.config.whiten == "full"
            advantages = whiten(advantages, batch.action_mask, divide_by_std=full)
        seen = sum(weights.get(name, 1.0) * column.nan_to_num() for name, column in named.items())
        # Each row of an episode carries the episode's whole reward, and their shares add up to one episode.
        share = 1.0 / torch.bincount(batch.episode)[batch.episode]  # (B,)
        unseen = Metric(((batch.rewards - seen).abs() * share).sum(), share.sum())
        return Advantages(advantages=advantages, metrics={"gdpo/reward_unseen": unseen})


COMPONENT = Component(
    name="gdpo",
    factory=Gdpo,
    config=GdpoConfig,
    summary="several rewards, each normalized within its group by itself, then summed (GDPO)",
    needs=frozenset({"group>=2", "reward"}),
    conflicts=frozenset({"reward_shaper"}),
)
