"""OPO: the group's mean, weighted by length, which is close to the baseline of least gradient variance."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from rlhf_core.math import group_mean, group_weighted_mean


def length_weighted_advantages(
    rewards: Float[Tensor, "b k"],
    lengths: Int[Tensor, " b"],
    group: Int[Tensor, " b"],
    episode: Int[Tensor, " b"],
) -> Float[Tensor, "b k"]:
    """Return, by turn, ``A_i = r_i - sum_j(l_j r_j) / sum_j(l_j)`` within each group.

    The baseline that minimizes the variance of a policy gradient weights each reward by the squared norm of its
    sample's score; taking that norm as proportional to the length gives this one. Over the tokens of a group the
    advantages have mean 0. Equal lengths give the plain mean. Equal rewards in a group give exactly 0, and so does a
    group of one.

    Args:
        rewards: what each row earns from turn k on.
        lengths: action tokens of the row.
        group: index of the prompt.
        episode: index of the episode; an episode of several rows counts with its mean reward and the tokens of all
            of its rows.

    Source: Hao et al. 2025 (OPO), arXiv:2505.23585.
    """
    of_episode = group_mean(rewards, episode)  # (B, K)
    weights = lengths[:, None].expand_as(rewards).to(rewards.dtype)  # (B, K)
    return rewards - group_weighted_mean(of_episode, weights, group)
