"""GSPO: one clipped ratio for a whole sequence. No token is clipped by itself.

There are two forms with the same value. In ``gspo`` the gradient is that of the sequence's ratio, which treats all
tokens of a sequence alike; in ``gspo_token`` it goes through each token by itself, so tokens keep their own advantages.

Symbols of the paper: ``s_i(theta)`` is ``ratio``, ``pi_theta`` the policy and ``pi_theta_old`` old.
We differ from it in one thing: the mean log-ratio is clamped to [-20, 20], which keeps the exponential finite.

Source: Zheng et al. 2025, arXiv:2507.18071, equations 5 to 7, and section 4.3 for GSPO-token.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import MAX_LOG_RATIO, credited_to_own_token, masked_sum, row_mean


class GspoConfig(Config):
    clip_low: float = Field(
        3e-4,
        gt=0.0,
        le=1.0,
        description="the sequence's ratio, a geometric mean over its tokens, counts down to 1 - clip_low",
    )
    clip_high: float = Field(
        4e-4,
        gt=0.0,
        le=10.0,
        description="the sequence's ratio, a geometric mean over its tokens, counts up to 1 + clip_high",
    )


class GspoResult(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[torch.Tensor, "b a"]
    ratio: Float[torch.Tensor, "b a"]
    """The sequence's ratio."""
    clipped_low: Bool[torch.Tensor, "b a"]
    """A token with A < 0 of a sequence whose ratio is below 1 - clip_low: no gradient."""
    clipped_high: Bool[torch.Tensor, "b a"]
    """A token with A > 0 of a sequence whose ratio is above 1 + clip_high: no gradient."""


def sequence_log_ratio(
    policy_logprobs: Float[torch.Tensor, "b a"],
    old_logprobs: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
) -> Float[torch.Tensor, "b 1"]:
    """Return the mean of ``policy - old`` over each row's action tokens, in nats per token; 0 for a row without any.

    Clamped to [-20, 20], with no gradient beyond. What stands at padding, nan included, has no effect.
    """
    mean = row_mean(policy_logprobs - old_logprobs, action_mask)  # (B, 1) log s_i
    return mean.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def gspo_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    old_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
) -> GspoResult:
    """Return ``-min(s * A_t, clip(s, 1 - clip_low, 1 + clip_high) * A_t)`` at each token; s is the sequence's ratio.

    ``s = exp(mean over the row of policy - old)``, the geometric mean of the tokens' ratios.

    With one advantage in a row, the mean over its tokens is the paper's loss of the sequence, and its gradient at each
    of n tokens is ``-s * A / n``; with s = 1 that is REINFORCE's. With several advantages all tokens of a row get the
    mean of them: use ``gspo_token_loss``. Rows of one token are PPO.

    Where the mean log-ratio is clamped there is no gradient. What stands at padding, nan included, has no effect.

    Args:
        clip_low: lower bound 1 - clip_low of s; s is a geometric mean, so the bounds are orders of magnitude narrower
            than for single tokens.
        clip_high: upper bound 1 + clip_high of s.

    Source: Zheng et al. 2025, arXiv:2507.18071, equations 5 to 7.
    """
    ratio = sequence_log_ratio(policy_logprobs, old_logprobs, action_mask).exp()  # (B, 1) s_i
    return _clipped(ratio.expand_as(policy_logprobs), advantages, action_mask, clip_low, clip_high)


def gspo_token_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    old_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
) -> GspoResult:
    """Return ``-min(s_t * A_t, clip(s_t, 1 - clip_low, 1 + clip_high) * A_t)``, ``s_t = stop(s) * p_t / stop(p_t)``.

    p_t is the policy's probability of the token. The value is ``gspo_loss``'s: s_t is s. The gradient at a token that
    is not clipped is ``-s * A_t``, through its own log-prob alone; with s = 1 it is REINFORCE's, whatever the
    advantages. With one advantage in a row, the gradient of the row's mean is that of ``gspo_loss``.

    Where the mean log-ratio is clamped, s is bounded and the gradient ``-s * A_t`` remains. What stands at padding, nan
    included, has no effect.

    Source: Zheng et al. 2025, arXiv:2507.18071, section 4.3.
    """
    value = sequence_log_ratio(policy_logprobs, old_logprobs, action_mask).exp()  # (B, 1) s_i
    logprobs = torch.where(action_mask, policy_logprobs, 0.0)
    ratio = credited_to_own_token(value, logprobs)  # (B, A) s_{i,t}
    return _clipped(ratio, advantages, action_mask, clip_low, clip_high)


def _clipped(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    action_mask: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> GspoResult:
    """Return ``-min(s * A, clip(s, 1 - clip_low, 1 + clip_high) * A)`` for ratios s that are laid out by token."""
    advantages = torch.where(action_mask, advantages, 0.0)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)  # (B, A)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    ratio = ratio.detach()
    return GspoResult(
        loss=torch.where(action_mask, loss, 0.0),
        ratio=torch.where(action_mask, ratio, 0.0),
        clipped_low=(advantages < 0) & (ratio < 1.0 - clip_low),
        clipped_high=(advantages > 0) & (ratio > 1.0 + clip_high),
    )


class GspoLoss:
    """Policy loss ``gspo``."""

    by_token = False
    """True: ``gspo_token_loss``."""

    def __init__(self, config: GspoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask = inputs.action_mask
        result = (gspo_token_loss if self.by_token else gspo_loss)(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            mask,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        count = mask.sum()
        metrics = {
            "policy/sequence_ratio": Metric(masked_sum(result.ratio, mask), count),
            "clip/fraction_low": Metric(result.clipped_low.sum(), count),
            "clip/fraction_high": Metric(result.clipped_high.sum(), count),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


class GspoTokenLoss(GspoLoss):
    """Policy loss ``gspo_token``."""

    by_token = True


COMPONENT = Component(
    name="gspo",
    factory=GspoLoss,
    config=GspoConfig,
    summary="clipped ratio of the whole sequence, per token its geometric mean (GSPO)",
    # The paper's loss is one number for a sequence: the mean over its tokens.
    provides=frozenset({"aggregation:seq-mean-token-mean", "off_policy"}),
)

TOKEN_COMPONENT = Component(
    name="gspo_token",
    factory=GspoTokenLoss,
    config=GspoConfig,
    summary="gspo for advantages that differ within a sequence (GSPO-token)",
    # The paper's loss is one number for a sequence: the mean over its tokens.
    provides=frozenset({"aggregation:seq-mean-token-mean", "off_policy"}),
)
