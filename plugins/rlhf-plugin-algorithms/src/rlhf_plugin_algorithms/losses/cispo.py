"""CISPO: the importance weight is bounded, and no token loses its gradient.

PPO stops the gradient of tokens whose ratio left its bounds; among them are the rare ones that begin a new thought.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import masked_sum, token_log_ratios, weighted_reinforce


class CispoConfig(Config):
    clip_low: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="the weight of a token is at least 1 - clip_low; 1: no lower bound",
    )
    clip_high: float = Field(
        4.0, gt=0.0, le=1000.0, description="the weight of a token is at most 1 + clip_high"
    )


class CispoResult(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[torch.Tensor, "b a"]
    ratio: Float[torch.Tensor, "b a"]
    bounded_low: Bool[torch.Tensor, "b a"]
    """True where the weight is 1 - clip_low and not the ratio."""
    bounded_high: Bool[torch.Tensor, "b a"]
    """True where the weight is 1 + clip_high and not the ratio."""


def cispo_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    old_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
) -> CispoResult:
    """Return ``-stop(clip(ratio, 1 - clip_low, 1 + clip_high)) * A * log policy``, ``ratio = exp(policy - old)``.

    The gradient at each token is ``-clip(ratio) * A``. At ratio 1 it is REINFORCE's; with bounds that are never reached
    it is that of ``-ratio * A``; as both bounds go to 0 it is REINFORCE's at any ratio, without a weight.

    The log-ratio is clamped to [-20, 20]. What stands at padding, nan included, has no effect.

    Args:
        clip_low: in (0, 1]; 1 means no lower bound.
        clip_high: positive; beyond it the weight stays at the bound and learning goes on, unlike in PPO, so it can be
            far from 1.

    Source: MiniMax 2025 (MiniMax-M1), arXiv:2506.13585, section 3.1.
    """
    ratio = token_log_ratios(policy_logprobs.detach(), old_logprobs, action_mask).exp()  # (B, A)
    weights = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return CispoResult(
        loss=weighted_reinforce(policy_logprobs, advantages, action_mask, weights),
        ratio=torch.where(action_mask, ratio, 0.0),
        bounded_low=action_mask & (ratio < 1.0 - clip_low),
        bounded_high=action_mask & (ratio > 1.0 + clip_high),
    )


class CispoLoss:
    """Policy loss ``cispo``."""

    def __init__(self, config: CispoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask = inputs.action_mask
        result = cispo_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            mask,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "cispo/bounded_low": Metric(result.bounded_low.sum(), count),
            "cispo/bounded_high": Metric(result.bounded_high.sum(), count),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


COMPONENT = Component(
    name="cispo",
    factory=CispoLoss,
    config=CispoConfig,
    summary="log-prob weighted with the bounded ratio; no token loses its gradient (CISPO)",
    provides=frozenset({"aggregation:token-mean", "off_policy"}),
)
