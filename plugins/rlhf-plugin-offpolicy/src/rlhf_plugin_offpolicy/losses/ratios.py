"""Log-ratios of two policies at the sampled tokens."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


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
