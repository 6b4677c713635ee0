"""REINFORCE's loss with a weight for each token, the last part of losses with detached importance weights."""

from __future__ import annotations

from ..lazy import Bool, Float, torch


def weighted_reinforce(
    policy_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    weights: Float[torch.Tensor, "b a"],
) -> Float[torch.Tensor, "b a"]:
    """Return ``-stop(w) * A * log policy`` per token; 0 at padding.

    The gradient with respect to each log-prob is ``-w * A``, which is REINFORCE's for w = 1. The value means little: it
    depends on how likely the tokens are at all. Values at padding, nan included, have no effect.

    Args:
        weights: w, finite and not negative; no gradient flows through them.
    """
    logprobs = torch.where(action_mask, policy_logprobs, 0.0)
    advantages = torch.where(action_mask, advantages, 0.0)
    weights = torch.where(action_mask, weights.detach(), 0.0)
    return -weights * advantages * logprobs
