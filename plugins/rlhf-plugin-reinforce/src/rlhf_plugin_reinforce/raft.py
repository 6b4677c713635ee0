"""RAFT: learn from the good samples alone, and from each of them as much as from any other."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlhf_core.math import group_mean, group_top_two


def best_of_group(
    rewards: Float[Tensor, " b"], group: Int[Tensor, " b"], episode: Int[Tensor, " b"]
) -> Bool[Tensor, " b"]:
    """Return True for the rows of the episode that earned most in its group; for all that share the largest reward.

    A group whose episodes all earned the same, a group of one among them, has no best: all are False.

    Source: Dong et al. 2023 (RAFT), arXiv:2304.06767, which keeps one sample per prompt, also among equals.
    """
    of_episode = group_mean(rewards, episode)
    largest = group_top_two(rewards, group, episode)[0]
    smallest = -group_top_two(-rewards, group, episode)[0]
    return (of_episode == largest) & (largest > smallest)


def rewarded(
    rewards: Float[Tensor, " b"], episode: Int[Tensor, " b"], threshold: float
) -> Bool[Tensor, " b"]:
    """Return True for the rows of episodes that earned more than ``threshold``.

    Source: Xiong et al. 2025 (RAFT++), arXiv:2504.11343, with rewards of 0 and 1 and a threshold between them.
    """
    return group_mean(rewards, episode) > threshold
