"""Dr. GRPO's advantage: GRPO's without the division, which favors prompts that are almost solved or almost hopeless.

The other half of Dr. GRPO is the loss's divisor, a constant in place of each response's length. That is the core's
aggregation ``seq-mean-token-sum-norm``.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from rlhf_core.math import group_mean


def group_centered_advantages(
    rewards: Float[Tensor, "b k"], group: Int[Tensor, " b"], episode: Int[Tensor, " b"]
) -> Float[Tensor, "b k"]:
    """Return, by turn, ``A_i = r_i - mean(r)`` within each group.

    Equal rewards in a group give exactly 0, and so does a group of one.

    Args:
        rewards: what each row earns from turn k on.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once in the mean.

    Source: Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783.
    """
    return rewards - group_mean(rewards, group, episode)
