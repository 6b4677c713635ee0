"""GMPO: a sequence's ratio is the geometric mean of its tokens' ratios, each of which is clipped by itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.math import token_log_ratios

from .ratios import credited_to_own_token, row_mean


class GmpoResult(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[Tensor, "b a"]
    ratio: Float[Tensor, "b a"]
    """The sequence's ratio."""
    clipped_low: Bool[Tensor, "b a"]
    """A bad token's log-ratio that is below ``-clip_low``."""
    clipped_high: Bool[Tensor, "b a"]
    """A good token's log-ratio that is above ``clip_high``."""


def gmpo_loss(
    policy_logprobs: Float[Tensor, "b a"],
    old_logprobs: Float[Tensor, "b a"],
    advantages: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
) -> GmpoResult:
    """Return ``-s * A_t`` at each token, with ``s = exp(mean over the row of the clipped log-ratios)``.

    A token's log-ratio l counts as ``min(l, clip_high)`` where A >= 0 and as ``max(l, -clip_low)`` where A < 0; beyond,
    the token gets no gradient but stays in the mean. Bounds that are never reached give the unclipped geometric mean;
    equal policies have s = 1 and the gradient of REINFORCE.

    The gradient of a token is ``-s * A_t``, through its own log-prob. For rows with one advantage, averaged over the
    tokens of a row, that is exactly the gradient of ``-A * s``.

    Log-ratios are clamped to [-20, 20] first. What stands at padding, nan included, has no effect.

    Args:
        clip_low: nats, positive: not a distance from ratio 1.
        clip_high: nats, positive.

    Source: Zhao et al. 2025, arXiv:2507.20673. The paper has one advantage per row; with several, its
    product would mix them.
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    log_ratio = token_log_ratios(policy_logprobs, old_logprobs, action_mask)
    bad = advantages < 0
    clipped = torch.where(bad, log_ratio.clamp(min=-clip_low), log_ratio.clamp(max=clip_high))
    ratio = row_mean(clipped.detach(), action_mask).exp()  # (B, 1)
    loss = -credited_to_own_token(ratio, clipped) * advantages
    log_ratio = log_ratio.detach()
    return GmpoResult(
        loss=torch.where(action_mask, loss, 0.0),
        ratio=torch.where(action_mask, ratio, 0.0),
        clipped_low=action_mask & bad & (log_ratio < -clip_low),
        clipped_high=action_mask & ~bad & (log_ratio > clip_high),
    )
