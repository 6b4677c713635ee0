"""GRPO's advantage: each prompt's rewards, normalized by their own mean and standard deviation."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from rlhf_core.math import group_mean, group_std


def group_normalized_advantages(
    rewards: Float[Tensor, "b k"],
    group: Int[Tensor, " b"],
    episode: Int[Tensor, " b"],
    *,
    eps: float,
    correction: int,
) -> Float[Tensor, "b k"]:
    """Return, by turn, ``A_i = (r_i - mean(r)) / (std(r) + eps)`` within each group.

    Equal rewards in a group give exactly 0, and so does a group of one. With a small eps, scaling or shifting the
    rewards of a group changes nothing: prompts on which samples differ little weigh as much as others.

    ``|A_i|`` is at most ``sqrt((n - correction) * (m - 1/n))`` for n episodes in the group and m rows in the episode of
    i, whatever the rewards: mean and deviation are over the same rows with the same weights.

    Args:
        rewards: what each row earns from turn k on.
        group: index of the prompt.
        episode: index of the episode; each of m rows of an episode weighs 1/m, in the mean and in the deviation.
        eps: added to the standard deviation, in units of the reward.
        correction: 1 for the sample's standard deviation, 0 for the population's.

    Source: Shao et al. 2024 (GRPO), arXiv:2402.03300, section 4.1, which leaves eps and the correction open.
    """
    deviation = rewards - group_mean(rewards, group, episode)
    return deviation / (group_std(rewards, group, episode, correction=correction) + eps)
