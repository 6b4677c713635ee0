"""TOPR: REINFORCE for good sequences, importance weights of at most 1 for bad ones.

Off-policy, plain REINFORCE pushes a bad sequence down without end: it stays in the data however unlikely it has become.
Good ones need no weight for stability, and without it they are learned faster.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.math import MAX_LOG_RATIO, token_log_ratios

from .ratios import weighted_reinforce


class ToprResult(NamedTuple):
    """All zero at padding. Only ``loss`` has a gradient."""

    loss: Float[Tensor, "b a"]
    weights: Float[Tensor, "b a"]
    log_ratio: Float[Tensor, "b 1"]
    """Of the whole sequence, policy to sampler, nats; clamped to [-20, 20]."""


def topr_loss(
    policy_logprobs: Float[Tensor, "b a"],
    rollout_logprobs: Float[Tensor, "b a"],
    advantages: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
) -> ToprResult:
    """Return ``-stop(w) * A_t * log policy_t``: w = 1 where A >= 0, and ``w = min(policy / rollout, 1)`` where A < 0.

    The ratio is that of the whole sequence, the product over its tokens. Equal policies give w = 1 and the gradient of
    REINFORCE; so do sequences that became likelier. Bad sequences lose their gradient as they become unlikely.

    A token's log-ratio and their sum are clamped to [-20, 20]. What stands at padding, nan included, has no effect.

    Args:
        rollout_logprobs: of the policy that sampled the tokens, whatever its age.

    Source: Le Roux et al. 2025, arXiv:2503.14286. The paper has one return per sequence; where tokens
    differ in the sign of their advantage, each is weighted by its own.
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    tokens = token_log_ratios(policy_logprobs.detach(), rollout_logprobs, action_mask)
    log_ratio = tokens.sum(dim=1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)  # (B, 1)
    weights = torch.where(advantages < 0, log_ratio.clamp(max=0.0).exp(), 1.0)  # (B, A)
    weights = torch.where(action_mask, weights, 0.0)
    return ToprResult(
        loss=weighted_reinforce(policy_logprobs, advantages, action_mask, weights),
        weights=weights,
        log_ratio=log_ratio,
    )
