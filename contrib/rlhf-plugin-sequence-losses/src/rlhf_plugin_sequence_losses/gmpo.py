"""GMPO: a sequence's ratio is the geometric mean of its tokens' ratios, each of which is clipped by itself."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import credited_to_own_token, masked_sum, row_mean, token_log_ratios


class GmpoConfig(Config):
    clip_low: float = Field(
        0.4,
        gt=0.0,
        le=20.0,
        description="a token's log-ratio counts down to -clip_low, in nats: 0.4 is a ratio of 0.67",
    )
    clip_high: float = Field(
        0.4,
        gt=0.0,
        le=20.0,
        description="a token's log-ratio counts up to clip_high, in nats: 0.4 is a ratio of 1.49",
    )


class GmpoResult(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[torch.Tensor, "b a"]
    ratio: Float[torch.Tensor, "b a"]
    """The sequence's ratio."""
    clipped_low: Bool[torch.Tensor, "b a"]
    """True where A < 0 and the log-ratio is below ``-clip_low``: no gradient."""
    clipped_high: Bool[torch.Tensor, "b a"]
    """True where A >= 0 and the log-ratio is above ``clip_high``: no gradient."""


def gmpo_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    old_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
) -> GmpoResult:
    """Return ``-s * A_t`` at each token, with ``s = exp(mean over the row of the clipped log-ratios)``.

    A token's log-ratio l counts as ``min(l, clip_high)`` where A >= 0 and as ``max(l, -clip_low)`` where A < 0; beyond,
    the token gets no gradient but stays in the mean. Bounds that are never reached give the unclipped geometric mean;
    equal policies have s = 1 and the gradient of REINFORCE.

    The gradient at a token that is not clipped is ``-s * A_t``, through its own log-prob. For rows with one advantage,
    averaged over the tokens of a row, that is exactly the gradient of ``-A * s``.

    Log-ratios of tokens are clamped to [-20, 20] first. What stands at padding, nan included, has no effect.

    Args:
        clip_low: nats, positive; a bound of the log-ratio, not a distance from ratio 1.
        clip_high: nats, positive.

    Source: Zhao et al. 2025, arXiv:2507.20673. The paper has one advantage per row. With several, the
    gradient of s itself would give every token their mean; here each token keeps its own.
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    log_ratio = token_log_ratios(policy_logprobs, old_logprobs, action_mask)
    bad = advantages < 0
    clipped = torch.where(bad, log_ratio.clamp(min=-clip_low), log_ratio.clamp(max=clip_high))
    ratio = row_mean(clipped.detach(), action_mask).exp()  # (B, 1)
    loss = -credited_to_own_token(ratio, clipped) * advantages
    log_ratio = log_ratio.detach()
    return GmpoResult(
        loss=torch.where(action_mask, loss, 0.0),
        ratio=torch.where(action_mask, ratio, 0.0),
        clipped_low=action_mask & bad & (log_ratio < -clip_low),
        clipped_high=action_mask & ~bad & (log_ratio > clip_high),
    )


class GmpoLoss:
    """Policy loss ``gmpo``."""

    def __init__(self, config: GmpoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        result = gmpo_loss(
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
    name="gmpo",
    factory=GmpoLoss,
    config=GmpoConfig,
    summary="geometric mean of the sequence's ratios, each clipped by itself (GMPO)",
    provides=frozenset({"aggregation:seq-mean-token-mean", "off_policy"}),
)
