"""LUSPO: GSPO's clipped sequence ratio, summed over tokens instead of averaged, so that long rows count in full."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import credited_to_own_token, masked_sum, row_mean, token_log_ratios


class LuspoConfig(Config):
    clip_low: float = Field(
        3e-4,
        gt=0.0,
        le=1.0,
        description="the sequence's ratio, a geometric mean, counts down to 1 - clip_low",
    )
    clip_high: float = Field(
        4e-4,
        gt=0.0,
        le=10.0,
        description="the sequence's ratio, a geometric mean, counts up to 1 + clip_high",
    )


class LuspoResult(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[torch.Tensor, "b a"]
    ratio: Float[torch.Tensor, "b a"]
    """The sequence's ratio."""
    clipped_low: Bool[torch.Tensor, "b a"]
    """A token with A < 0 of a sequence whose ratio is below 1 - clip_low: no gradient."""
    clipped_high: Bool[torch.Tensor, "b a"]
    """A token with A > 0 of a sequence whose ratio is above 1 + clip_high: no gradient."""


def luspo_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    old_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
) -> LuspoResult:
    """Return ``-min(s * A_t, clip(s, 1 - clip_low, 1 + clip_high) * A_t)``; s is the sequence's ratio.

    ``s = exp(mean over the row of policy - old)``, the geometric mean of the tokens' ratios.

    Summed over the tokens of a row with one advantage this is ``n * -min(s * A, clip(s) * A)``: GSPO's loss of the
    sequence times its length, which is LUSPO. The aggregation has to sum; with ``seq-mean-token-mean`` it is
    GSPO-token.

    The gradient of a token that is not clipped is ``-s * A_t``, through its own log-prob; for rows with one advantage
    the gradient of the sum is exactly the paper's. Equal policies have s = 1 and the gradient of REINFORCE.

    Log-ratios of tokens are clamped to [-20, 20] first, where ``gspo`` clamps their mean. What stands at padding, nan
    included, has no effect.

    Args:
        clip_low: lower bound 1 - clip_low of s; s is a geometric mean, so the bounds are orders of magnitude narrower
            than for single tokens.
        clip_high: upper bound 1 + clip_high of s.

    Source: Liu et al. 2026, arXiv:2602.05261; the ratio: Zheng et al. 2025 (GSPO), arXiv:2507.18071, equation 7.
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    log_ratio = token_log_ratios(policy_logprobs, old_logprobs, action_mask)
    value = row_mean(log_ratio.detach(), action_mask).exp()  # (B, 1)
    ratio = credited_to_own_token(value, log_ratio)  # (B, A)
    clipped = value.clamp(1.0 - clip_low, 1.0 + clip_high)
    clipped_low = action_mask & (advantages < 0) & (value < 1.0 - clip_low)
    clipped_high = action_mask & (advantages > 0) & (value > 1.0 + clip_high)
    # where() on the reason for clipping, not minimum(): at s = 1 both sides are equal and minimum() would give half
    # of the gradient to the constant one.
    loss = -torch.where(clipped_low | clipped_high, clipped, ratio) * advantages
    return LuspoResult(
        loss=torch.where(action_mask, loss, 0.0),
        ratio=torch.where(action_mask, value, 0.0),
        clipped_low=clipped_low,
        clipped_high=clipped_high,
    )


class LuspoLoss:
    """Policy loss ``luspo``."""

    def __init__(self, config: LuspoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        result = luspo_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            inputs.action_mask,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        count = inputs.action_mask.sum()
        metrics = {
            "policy/sequence_ratio": Metric(masked_sum(result.ratio, inputs.action_mask), count),
            "clip/fraction_low": Metric(result.clipped_low.sum(), count),
            "clip/fraction_high": Metric(result.clipped_high.sum(), count),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


COMPONENT = Component(
    name="luspo",
    factory=LuspoLoss,
    config=LuspoConfig,
    summary="clipped sequence ratio, every token of the same weight whatever the length (LUSPO)",
    provides=frozenset({"aggregation:seq-mean-token-sum-norm", "off_policy"}),
)
