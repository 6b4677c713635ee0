"""KL divergence between two distributions of which the teacher's most probable tokens are known.

Everything else is one more outcome, so both distributions sum to 1. Without it the sums are no divergences: they can be
negative, and a policy would lower the reverse one by moving probability away from the tokens that are looked at.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MIN_REST = 1e-6
"""The probability of all other tokens together is at least this: a rest below is the rounding of a float32 sum."""


class TopKResult(NamedTuple):
    """Per position; all zero at padding. Only ``kl`` has a gradient."""

    kl: Float[Tensor, "b a"]
    policy_mass: Float[Tensor, "b a"]
    """What the policy gives to the teacher's tokens; at most 1."""
    teacher_mass: Float[Tensor, "b a"]


def top_k_kl(
    policy_top_logprobs: Float[Tensor, "b a k"],
    teacher_top_logprobs: Float[Tensor, "b a k"],
    action_mask: Bool[Tensor, "b a"],
    *,
    forward: bool,
) -> TopKResult:
    """Return the KL divergence at each position, in nats, over the teacher's k tokens and the rest as one outcome.

    ``reverse: sum over k of q log(q / p) + q_rest log(q_rest / p_rest)`` with q the policy and p the teacher, and
    ``forward`` with the two exchanged. Never negative up to rounding, 0 for equal log-probs, and at most the KL over
    the whole vocabulary, which it is when k tokens are all there are.

    The rest is ``1 - sum over k``, at least 1e-6, and has no gradient below. What stands at padding, nan included, has
    no effect.

    Args:
        policy_top_logprobs: at the teacher's tokens.
        forward: KL(teacher || policy) instead of KL(policy || teacher).

    Source: Agarwal et al. 2023 (on-policy distillation), arXiv:2306.13649, for both directions on the student's own
    samples; the truncation to k tokens and a rest is ours and others', see docs/algorithms.
    """
    mask = action_mask.unsqueeze(-1)
    # Replaced before the arithmetic: a nan at padding would come back in the backward pass as 0 * nan.
    policy = torch.where(mask, policy_top_logprobs, -1.0)  # (B, A, K)
    teacher = torch.where(mask, teacher_top_logprobs.detach(), -1.0)  # (B, A, K)
    policy_rest, teacher_rest = _rest(policy), _rest(teacher)  # (B, A)
    if forward:
        kl = _kl(teacher, policy) + _kl(teacher_rest.unsqueeze(-1), policy_rest.unsqueeze(-1))
    else:
        kl = _kl(policy, teacher) + _kl(policy_rest.unsqueeze(-1), teacher_rest.unsqueeze(-1))
    return TopKResult(
        kl=torch.where(action_mask, kl, 0.0),
        policy_mass=torch.where(action_mask, policy.detach().exp().sum(dim=-1), 0.0),
        teacher_mass=torch.where(action_mask, teacher.exp().sum(dim=-1), 0.0),
    )


def _rest(logprobs: Tensor) -> Tensor:
    """(B, A, K) -> (B, A): log-prob of all other tokens together."""
    # expm1 keeps the digits of a small rest.
    return (-torch.expm1(logprobs.logsumexp(dim=-1))).clamp(min=MIN_REST).log()


def _kl(first: Tensor, second: Tensor) -> Tensor:
    """(B, A, K) -> (B, A)"""
    return (first.exp() * (first - second)).sum(dim=-1)
