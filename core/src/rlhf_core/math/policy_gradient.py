"""REINFORCE's loss with a weight for each token: what losses with detached importance weights end in."""

from __future__ import annotations

from ..lazy import Bool, Float, torch


def weighted_reinforce(
    policy_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    weights: Float[torch.Tensor, "b a"],
) -> Float[torch.Tensor, "b a"]:
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
