"""REINFORCE with a group baseline: a sample's advantage is its reward minus its group's mean.

Differs from GRPO in one way: the scale comes from the whole batch, not from each group, so an easy prompt's small
differences are not blown up to the size of a hard one's.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from rlhf_core.math import group_mean


def group_baseline_advantages(
    rewards: Float[Tensor, "b k"], group: Int[Tensor, " b"], episode: Int[Tensor, " b"]
) -> Float[Tensor, "b k"]:
    """Return, by turn, the reward minus its group's mean: ``A_i = r_i - mean(r)``.

    Equal rewards in a group give exactly 0, and so does a group of one. Adding a constant to a group's rewards changes
    nothing.

    Args:
        rewards: what each row earns from turn k on.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once in the mean.

    Source: Hu et al. 2025 (REINFORCE++-baseline), arXiv:2501.03262, where whitening over the batch follows.
    """
    return rewards - group_mean(rewards, group, episode)
