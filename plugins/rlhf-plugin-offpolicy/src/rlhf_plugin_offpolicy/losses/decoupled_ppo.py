"""Decoupled PPO: the policy that sampled the data and the policy that updates stay close to are two.

With stale data, or a sampler with other kernels, PPO would hold the policy near the sampler's. Here it is held near the
policy at the start of the updates, and the data is weighted to look as if that one had sampled it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.math import token_log_ratios


class DecoupledResult(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[Tensor, "b a"]
    ratio: Float[Tensor, "b a"]
    """Policy to old."""
    weights: Float[Tensor, "b a"]
    """Old to rollout, bounded; 0 where dropped."""
    clipped_low: Bool[Tensor, "b a"]
    """The lower bound stopped the gradient: a bad token that is already 1 - clip_low times as likely."""
    clipped_high: Bool[Tensor, "b a"]
    """The upper bound stopped it: a good token that is already 1 + clip_high times as likely."""
    beyond: Bool[Tensor, "b a"]
    """The weight was above its bound."""


def decoupled_ppo_loss(
    policy_logprobs: Float[Tensor, "b a"],
    old_logprobs: Float[Tensor, "b a"],
    rollout_logprobs: Float[Tensor, "b a"],
    advantages: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
    max_weight: float | None,
    drop_beyond: bool,
) -> DecoupledResult:
    """Return ``-w * min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)``.

    ``ratio = exp(policy - old)`` has the gradient; ``w = exp(old - rollout)`` has none. A weight above ``max_weight``
    drops its token, or is set to the bound.

    An exact sampler without staleness (rollout = old) gives PPO. With policy = old the gradient is ``-w * A``, and
    REINFORCE's if all three are equal.

    Log-ratios are clamped to [-20, 20]. What stands at padding, nan included, has no effect.

    Args:
        old_logprobs: of the proximal policy: the trainer's at the start of the updates.
        rollout_logprobs: of the behavior policy: the sampler's.
        max_weight: at least 1; None: no bound.
        drop_beyond: drop tokens with a larger weight, instead of truncating it.

    Source: Fu et al. 2025 (AReaL), arXiv:2505.24298, after Hilton et al. 2022, arXiv:2110.00641; the
    bound: AReaL's code.
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    ratio = token_log_ratios(policy_logprobs, old_logprobs, action_mask).exp()  # (B, A)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    raw = token_log_ratios(old_logprobs, rollout_logprobs, action_mask).exp().detach()  # (B, A)
    bound = float("inf") if max_weight is None else max_weight
    beyond = raw > bound
    bounded = torch.where(beyond, 0.0, raw) if drop_beyond else raw.clamp(max=bound)
    weights = torch.where(action_mask, bounded, 0.0)
    loss = -weights * torch.minimum(ratio * advantages, clipped * advantages)
    ratio = ratio.detach()
    return DecoupledResult(
        loss=torch.where(action_mask, loss, 0.0),
        ratio=torch.where(action_mask, ratio, 0.0),
        weights=weights,
        clipped_low=(advantages < 0) & (ratio < 1.0 - clip_low),
        clipped_high=(advantages > 0) & (ratio > 1.0 + clip_high),
        beyond=beyond,
    )
