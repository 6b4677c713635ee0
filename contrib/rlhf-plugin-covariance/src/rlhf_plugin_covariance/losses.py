"""The losses of Clip-Cov and KL-Cov for a selection that is already made."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.math import MAX_LOG_RATIO, token_log_ratios


class ClipCovResult(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[Tensor, "b a"]
    ratio: Float[Tensor, "b a"]
    clipped_low: Bool[Tensor, "b a"]
    """A bad token that is already 1 - clip_low times as likely."""
    clipped_high: Bool[Tensor, "b a"]
    """A good token that is already 1 + clip_high times as likely."""


class KlCovResult(NamedTuple):
    """Per token; all zero at padding. Only ``loss`` has a gradient."""

    loss: Float[Tensor, "b a"]
    ratio: Float[Tensor, "b a"]
    abs_log_ratio: Float[Tensor, "b a"]


def clip_cov_loss(
    policy_logprobs: Float[Tensor, "b a"],
    old_logprobs: Float[Tensor, "b a"],
    advantages: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    detached: Bool[Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
) -> ClipCovResult:
    """Return PPO's clipped loss, and 0 with no gradient at the tokens that are ``detached``.

    ``loss = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)`` elsewhere, with
    ``ratio = exp(policy - old)``. Without detached tokens it is PPO's loss; at ratio 1 its gradient is REINFORCE's.

    The log-ratio is clamped to [-20, 20] before the exponential, with no gradient beyond. What stands at padding, nan
    included, has no effect.

    Source: Cui et al. 2025, arXiv:2505.22617 (Clip-Cov).
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    ratio = token_log_ratios(policy_logprobs, old_logprobs, action_mask).exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    kept = action_mask & ~detached
    ratio = ratio.detach()
    return ClipCovResult(
        loss=torch.where(kept, loss, 0.0),
        ratio=torch.where(action_mask, ratio, 0.0),
        clipped_low=kept & (advantages < 0) & (ratio < 1.0 - clip_low),
        clipped_high=kept & (advantages > 0) & (ratio > 1.0 + clip_high),
    )


def kl_cov_loss(
    policy_logprobs: Float[Tensor, "b a"],
    old_logprobs: Float[Tensor, "b a"],
    advantages: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    penalized: Bool[Tensor, "b a"],
    *,
    kl_coef: float,
) -> KlCovResult:
    """Return ``-ratio * A``, plus ``kl_coef * |policy - old|`` at the tokens that are ``penalized``.

    The ratio is not clipped. At ratio 1 the penalty and its gradient are 0 and the rest is REINFORCE: it begins to
    hold a token back with the second update of a batch, by a constant pull of ``kl_coef`` toward the old log-prob.

    The log-ratio is clamped to [-20, 20] before the exponential, with no gradient beyond; the penalty is not clamped,
    so that it still pulls there. What stands at padding, nan included, has no effect.

    Source: Cui et al. 2025, arXiv:2505.22617 (KL-Cov). The paper writes a KL divergence; its authors' code
    takes the absolute log-ratio of the sampled token, and so do we.
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    # Not bounded yet: the penalty still pulls where the ratio no longer does. Padding is replaced before the
    # arithmetic: a nan there would come back in the backward pass as 0 * nan.
    log_ratio = torch.where(action_mask, policy_logprobs - old_logprobs, 0.0)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    penalty = torch.where(penalized & action_mask, kl_coef * log_ratio.abs(), 0.0)
    return KlCovResult(
        loss=penalty - ratio * advantages,
        ratio=torch.where(action_mask, ratio.detach(), 0.0),
        abs_log_ratio=log_ratio.detach().abs(),
    )
