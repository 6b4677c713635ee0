"""GDPO: each reward is normalized within its group by itself, and only then are they summed.

Normalizing the sum instead, as GRPO does, lets the reward with the largest spread decide and gives samples with
different merits the same advantage.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .group_norm import group_normalized_advantages


def decoupled_advantages(
    rewards_by_name: Mapping[str, Float[Tensor, " b"]],
    weights: Mapping[str, float],
    group: Int[Tensor, " b"],
    episode: Int[Tensor, " b"],
    *,
    eps: float,
) -> Float[Tensor, " b"]:
    """Return ``A_i = sum over rewards n of w_n (r_{n,i} - mean(r_n)) / (std(r_n) + eps)`` within each group.

    Mean and standard deviation (n - 1) are over the samples of the group that have the reward; a sample without it,
    which is NaN there, gets nothing from it. One reward of weight 1 gives GRPO's advantage. Equal rewards in a group
    give exactly 0, and so does a group of one.

    Args:
        rewards_by_name: the single rewards, unweighted.
        weights: by the same names; 1 where one is missing.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once.
        eps: added to each standard deviation, in units of the reward.

    Source: Liu et al. 2026 (GDPO), arXiv:2601.05242. Normalizing over the batch, its second step, is the caller's.
    """
    total = torch.zeros(group.shape, dtype=torch.float64, device=group.device)
    for name, rewards in rewards_by_name.items():
        has = ~rewards.isnan()
        # Groups and episodes that are left are numbered anew: statistics expect dense indices.
        dense_group, dense_episode = (
            torch.unique(index[has], return_inverse=True)[1] for index in (group, episode)
        )
        normalized = group_normalized_advantages(
            rewards[has][:, None], dense_group, dense_episode, eps=eps, correction=1
        )[:, 0]
        total[has] += weights.get(name, 1.0) * normalized.to(torch.float64)
    return total
