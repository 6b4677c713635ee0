"""PPO's clipped policy loss, per token, with separate bounds and an optional second clip."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.math import token_log_ratios


class ClippedLoss(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[Tensor, "b a"]
    ratio: Float[Tensor, "b a"]
    clipped_low: Bool[Tensor, "b a"]
    """The lower bound stopped the gradient: a bad token that is already 1 - clip_low times as likely."""
    clipped_high: Bool[Tensor, "b a"]
    """The upper bound stopped it: a good token that is already 1 + clip_high times as likely."""
    clipped_dual: Bool[Tensor, "b a"]
    """The dual clip stopped it: a bad token that became more than ``dual_clip`` times as likely."""


def clipped_policy_loss(
    policy_logprobs: Float[Tensor, "b a"],
    old_logprobs: Float[Tensor, "b a"],
    advantages: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> ClippedLoss:
    """Return the loss of each action token.

    ``loss = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)`` with ``ratio = exp(policy - old)``, and for
    A < 0 with a dual clip c ``loss = -max(min(...), c * A)``.

    Equal bounds give PPO; a larger ``clip_high`` is DAPO's clip-higher; bounds that are never reached leave
    ``-ratio * A``, whose gradient at ratio 1 is REINFORCE's. What stands at padding, nan included, has no effect.

    The log-ratio is clamped to [-20, 20] before the exponential, with no gradient beyond.

    Source: Schulman et al. 2017, arXiv:1707.06347, equation 7; separate bounds: Yu et al. 2025 (DAPO),
    arXiv:2503.14476; dual clip: Ye et al. 2020, arXiv:1912.09729.
    """
    # Padding is replaced before the arithmetic: a nan there would come back in the backward pass as 0 * nan.
    advantages = torch.where(action_mask, advantages, 0.0)
    ratio = token_log_ratios(policy_logprobs, old_logprobs, action_mask).exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    bad, good = advantages < 0, advantages > 0
    clipped_dual = torch.zeros_like(action_mask)
    if dual_clip is not None:
        bound = -dual_clip * advantages
        clipped_dual = bad & (loss > bound).detach()
        loss = torch.where(bad, torch.minimum(loss, bound), loss)
    ratio = ratio.detach()
    return ClippedLoss(
        loss=torch.where(action_mask, loss, 0.0),
        ratio=torch.where(action_mask, ratio, 0.0),
        clipped_low=bad & (ratio < 1.0 - clip_low),
        clipped_high=good & (ratio > 1.0 + clip_high),
        clipped_dual=clipped_dual,
    )
