"""CISPO: the importance weight is bounded, and no token loses its gradient.

PPO stops the gradient of tokens whose ratio left its bounds; among them are the rare ones that begin a new thought.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.math import token_log_ratios

from .ratios import weighted_reinforce


class CispoResult(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[Tensor, "b a"]
    ratio: Float[Tensor, "b a"]
    bounded_low: Bool[Tensor, "b a"]
    """The weight is 1 - clip_low and not the ratio."""
    bounded_high: Bool[Tensor, "b a"]
    """The weight is 1 + clip_high and not the ratio."""


def cispo_loss(
    policy_logprobs: Float[Tensor, "b a"],
    old_logprobs: Float[Tensor, "b a"],
    advantages: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
) -> CispoResult:
    """Return ``-stop(clip(ratio, 1 - clip_low, 1 + clip_high)) * A * log policy``, ``ratio = exp(policy - old)``.

    The gradient at each token is ``-clip(ratio) * A``. At ratio 1 it is REINFORCE's; with bounds that are never reached
    it is that of ``-ratio * A``; as both go to 0 it is REINFORCE's again, without any correction.

    The log-ratio is clamped to [-20, 20]. What stands at padding, nan included, has no effect.

    Args:
        clip_low: in (0, 1]; 1 means no lower bound.
        clip_high: positive; unlike in PPO, a bound and not a place where learning ends, so it can be far from 1.

    Source: MiniMax 2025 (MiniMax-M1), arXiv:2506.13585, section 3.1.
    """
    ratio = token_log_ratios(policy_logprobs.detach(), old_logprobs, action_mask).exp()  # (B, A)
    weights = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return CispoResult(
        loss=weighted_reinforce(policy_logprobs, advantages, action_mask, weights),
        ratio=torch.where(action_mask, ratio, 0.0),
        bounded_low=action_mask & (ratio < 1.0 - clip_low),
        bounded_high=action_mask & (ratio > 1.0 + clip_high),
    )
