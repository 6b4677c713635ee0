"""LUSPO: GSPO's clipped sequence ratio, summed over tokens instead of averaged, so that long rows count in full."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.math import token_log_ratios

from .ratios import credited_to_own_token, row_mean


class LuspoResult(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[Tensor, "b a"]
    ratio: Float[Tensor, "b a"]
    """The sequence's ratio."""
    clipped_low: Bool[Tensor, "b a"]
    """A bad token of a sequence that is already 1 - clip_low times as likely, per token."""
    clipped_high: Bool[Tensor, "b a"]
    """A good token of a sequence that is already 1 + clip_high times as likely, per token."""


def luspo_loss(
    policy_logprobs: Float[Tensor, "b a"],
    old_logprobs: Float[Tensor, "b a"],
    advantages: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
) -> LuspoResult:
    """Return ``-min(s * A_t, clip(s, 1 - clip_low, 1 + clip_high) * A_t)``; s is the sequence's ratio.

    ``s = exp(mean over the row of policy - old)``, the geometric mean of the tokens' ratios.

    Summed over the tokens of a row with one advantage this is ``n * -min(s * A, clip(s) * A)``: GSPO's loss of the
    sequence times its length, which is LUSPO. The aggregation has to sum; with ``seq-mean-token-mean`` it is GSPO.

    The gradient of a token that is not clipped is ``-s * A_t``, through its own log-prob; for rows with one advantage
    the gradient of the sum is exactly the paper's. Equal policies have s = 1 and the gradient of REINFORCE.

    Log-ratios are clamped to [-20, 20] first. What stands at padding, nan included, has no effect.

    Args:
        clip_low: of the geometric mean, so orders of magnitude smaller than for single tokens.

    Source: Liu et al. 2026, arXiv:2602.05261; the ratio: Zheng et al. 2025 (GSPO), arXiv:2507.18071, equation 7.
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    log_ratio = token_log_ratios(policy_logprobs, old_logprobs, action_mask)
    value = row_mean(log_ratio.detach(), action_mask).exp()  # (B, 1)
    ratio = credited_to_own_token(value, log_ratio)  # (B, A)
    clipped = value.clamp(1.0 - clip_low, 1.0 + clip_high)
    clipped_low = action_mask & (advantages < 0) & (value < 1.0 - clip_low)
    clipped_high = action_mask & (advantages > 0) & (value > 1.0 + clip_high)
    # where() on the reason for clipping, not minimum(): at s = 1 both sides are equal and minimum() would give half
    # of the gradient to the constant one.
    loss = -torch.where(clipped_low | clipped_high, clipped, ratio) * advantages
    return LuspoResult(
        loss=torch.where(action_mask, loss, 0.0),
        ratio=torch.where(action_mask, value, 0.0),
        clipped_low=clipped_low,
        clipped_high=clipped_high,
    )
