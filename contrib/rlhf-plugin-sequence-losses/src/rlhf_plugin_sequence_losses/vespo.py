"""VESPO: the log-prob of each token, weighted with a smooth kernel of the whole sequence's importance weight.

The importance weight is the plain product over tokens, without length normalization; the kernel keeps it bounded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.math import MAX_LOG_RATIO, token_log_ratios

MIN_LOG_WEIGHT = math.log(1e-8)
"""Smaller importance weights count as 1e-8, as in the authors' code. The kernel is below 1e-14 there for k >= 2."""


class VespoResult(NamedTuple):
    """All zero at padding. Only ``loss`` has a gradient."""

    loss: Float[Tensor, "b a"]
    kernel: Float[Tensor, "b a"]
    log_weight: Float[Tensor, "b 1"]
    """Of the sequence; clamped to [log 1e-8, 20]."""


def gamma_kernel(
    log_weight: Float[Tensor, "*n"], k: Float[Tensor, "*n"], lambda_: Float[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """Return ``w^k * exp(lambda * (1 - w))``: 1 at w = 1, and largest at ``w = k / lambda``.

    It rises as a power of w and falls exponentially, so neither a tiny nor a huge importance weight moves the policy.
    ``lambda_ = 0`` would give the power alone, and with ``k = 1`` the plain importance weight.

    Args:
        log_weight: nats.
        k: not negative.
        lambda_: not negative.

    Source: Shen et al. 2026, arXiv:2602.10693.
    """
    return (k * log_weight - lambda_ * torch.expm1(log_weight)).exp()


def vespo_loss(
    policy_logprobs: Float[Tensor, "b a"],
    behavior_logprobs: Float[Tensor, "b a"],
    advantages: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    *,
    k_pos: float,
    lambda_pos: float,
    k_neg: float,
    lambda_neg: float,
) -> VespoResult:
    """Return ``-stop(phi(w)) * A_t * log policy_t``, with ``log w = sum over the row of policy - behavior``.

    ``phi`` is ``gamma_kernel`` with ``k_pos, lambda_pos`` where A >= 0 and ``k_neg, lambda_neg`` elsewhere, and has no
    gradient. Equal policies have w = 1, phi = 1 and the gradient of REINFORCE.

    The log-ratio of a token is clamped to [-20, 20] and log w to [log 1e-8, 20]. What stands at padding, nan included,
    has no effect.

    Args:
        behavior_logprobs: of the policy that the data counts as sampled from.

    Source: Shen et al. 2026, arXiv:2602.10693, and the authors' code, which takes the sign from the first token of a
    sequence where we take each token's.
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    log_ratio = token_log_ratios(policy_logprobs.detach(), behavior_logprobs, action_mask)
    log_weight = log_ratio.sum(dim=1, keepdim=True).clamp(MIN_LOG_WEIGHT, MAX_LOG_RATIO)  # (B, 1)
    good = advantages >= 0
    # One side is a tensor: where() of two numbers is float32, whatever the log-probs are.
    k = torch.where(good, torch.full_like(log_ratio, k_pos), k_neg)
    lambda_ = torch.where(good, torch.full_like(log_ratio, lambda_pos), lambda_neg)
    kernel = gamma_kernel(log_weight.expand_as(k), k, lambda_)  # (B, A)
    logprobs = torch.where(action_mask, policy_logprobs, 0.0)
    return VespoResult(
        loss=-kernel * advantages * logprobs,
        kernel=torch.where(action_mask, kernel, 0.0),
        log_weight=log_weight,
    )
