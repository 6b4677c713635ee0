"""Advantages for pass@k: what a sample adds to the best of a set, instead of what it earns itself."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlhf_core.math import group_mean, group_size, group_std, group_top_two


def best_margin_advantages(
    rewards: Float[Tensor, "b k"],
    group: Int[Tensor, " b"],
    episode: Int[Tensor, " b"],
    *,
    divide_by_std: bool,
    eps: float,
) -> Float[Tensor, "b k"]:
    """Return, by turn, ``largest r - second largest r`` for the group's best sample and 0 for the others.

    That is by how much the group's maximum, and with n = k its pass@k, would fall without the sample. Divided by the
    group's ``std + eps`` (n - 1) if asked. Where several samples share the largest reward none is needed, so all get
    0: equal rewards and groups of one do too.

    Args:
        rewards: what each row earns from turn k on.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once, as their mean.
        eps: added to the standard deviation, in units of the reward.

    Source: Tang et al. 2025, arXiv:2503.19595, as in verl 0.9.1's ``grpo_passk``.
    """
    of_episode = group_mean(rewards, episode)  # (B, K)
    largest, second = group_top_two(of_episode, group, episode)
    margin = torch.where(of_episode == largest, largest - second, 0.0)
    if divide_by_std:
        # Of the same numbers as the margin: its episodes', not its rows'.
        margin = margin / (group_std(of_episode, group, episode) + eps)
    return margin


def analytic_passk_advantages(
    correct: Bool[Tensor, " b"],
    group: Int[Tensor, " b"],
    episode: Int[Tensor, " b"],
    *,
    k: int,
) -> Float[Tensor, " b"]:
    """Return the expected advantage of a sample over all sets of k that can be drawn from its group; float64.

    A set earns 1 if one of its samples is correct. With n samples, m of them wrong, sets drawn without replacement
    have the mean ``R = 1 - C(m, k) / C(n, k)`` and the standard deviation ``S = sqrt(R (1 - R))``. A sample's
    advantage is the mean of ``(reward of the set - R) / S`` over the sets that hold it:

    - correct: ``(1 - R) / S``
    - wrong: ``(1 - R - C(m - 1, k - 1) / C(n - 1, k - 1)) / S``

    ``k=1`` gives GRPO's advantage with the population's standard deviation and no eps. Where every set earns the same
    the result is 0: all samples correct, or wrong, or fewer than k wrong. So it is in a group smaller than k.

    Args:
        correct: one answer per episode: equal at all of its rows.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once.
        k: size of the sets, at least 1.

    Source: Chen et al. 2025 (Pass@k Training), arXiv:2508.10751, the analytic derivation.
    """
    size = group_size(group, episode)  # (B,)
    # A mean of zeros and ones times the size is a whole number up to rounding.
    num_wrong = (group_mean((~correct).to(torch.float64), group, episode) * size).round()
    all_wrong = _share_of_sets(num_wrong, size, k)  # (B,) 1 - R
    others_wrong = _share_of_sets(num_wrong - 1, size - 1, k - 1)
    std = (all_wrong * (1 - all_wrong)).sqrt()
    advantage = all_wrong - torch.where(correct, 0.0, others_wrong)
    varies = std > 0
    return torch.where(varies, advantage / torch.where(varies, std, 1.0), 0.0)


def _share_of_sets(part: Tensor, size: Tensor, drawn: int) -> Tensor:
    """``C(part, drawn) / C(size, drawn)``: the share of sets that lie within ``part``; 0 where there are none."""
    place = torch.arange(drawn, device=size.device, dtype=torch.float64)  # (drawn,)
    factors = (part[:, None] - place).clamp(min=0.0) / (size[:, None] - place).clamp(min=1.0)
    return factors.prod(dim=1)
