"""Log-ratios of two policies at the sampled tokens, bounded so that their exponential is finite."""

from __future__ import annotations

from ..lazy import Bool, Float, torch

MAX_LOG_RATIO = 20.0
"""Largest size of a log-ratio, in nats. e^20 is 5e8: far beyond any clip range, and finite in float32 also after
multiplication with an advantage."""


def token_log_ratios(
    policy_logprobs: Float[torch.Tensor, "b a"],
    behavior_logprobs: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
) -> Float[torch.Tensor, "b a"]:
    """Return ``policy - behavior`` in nats, clamped to [-20, 20] with no gradient beyond; 0 at padding.

    Values at padding, nan included, have no effect.
    """
    # Padding is replaced before the arithmetic: a nan there would come back in the backward pass as 0 * nan.
    difference = torch.where(action_mask, policy_logprobs - behavior_logprobs, 0.0)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
