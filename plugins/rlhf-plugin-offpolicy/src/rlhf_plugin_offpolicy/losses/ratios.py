"""Log-ratios of two policies at the sampled tokens."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""e^20 is 5e8: far beyond any bound, and finite in float32 also after multiplication with an advantage."""


def token_log_ratios(
    policy_logprobs: Float[Tensor, "b a"],
    behavior_logprobs: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
) -> Float[Tensor, "b a"]:
    """Return ``policy - behavior`` in nats, clamped to [-20, 20] with no gradient beyond; 0 at padding.

    What stands at padding, nan included, has no effect.
    """
    # Padding is replaced before the arithmetic: a nan there would come back in the backward pass as 0 * nan.
    difference = torch.where(action_mask, policy_logprobs - behavior_logprobs, 0.0)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def weighted_reinforce(
    policy_logprobs: Float[Tensor, "b a"],
    advantages: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    weights: Float[Tensor, "b a"],
) -> Float[Tensor, "b a"]:
    """Return ``-stop(w) * A * log policy``; 0 at padding.

    The gradient at each token is ``-w * A``, REINFORCE's for w = 1. The value means little: it depends on how likely
    the tokens are at all. What stands at padding, nan included, has no effect.

    Args:
        weights: finite, not negative; no gradient flows through them.
    """
    logprobs = torch.where(action_mask, policy_logprobs, 0.0)
    advantages = torch.where(action_mask, advantages, 0.0)
    weights = torch.where(action_mask, weights.detach(), 0.0)
    return -weights * advantages * logprobs
