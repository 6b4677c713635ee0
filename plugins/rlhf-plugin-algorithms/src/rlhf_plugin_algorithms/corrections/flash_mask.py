"""FlashREINFORCE's mask: sequences whose mean binary KL is large are dropped; the others carry token weights.

With p the sampler's and q the trainer's probability of a token, a sequence is kept where the mean over its tokens of
``p log(p/q) + (1-p) log((1-p)/(1-q))`` is at most ``high``; p and q are kept in [1e-6, 1 - 1e-6] there. Tokens of kept
sequences carry ``min(q / p, max_weight)``.

Source: OpenRLHF 0.11.2 (pull request 1339), whose estimator ``flash_reinforce`` it goes with.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Correction
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import row_mean

from .weighting import CONFLICTS, NEEDS, at_most, correction, log_ratios, probability, ratios


class FlashMaskConfig(Config):
    high: float = Field(
        0.005,
        gt=0.0,
        le=100.0,
        description="sequences with a larger mean binary KL, in nats per token, are dropped",
    )
    max_weight: float | None = Field(
        None,
        ge=1.0,
        le=1e6,
        description="largest weight of a kept token; none: no bound",
    )


class FlashMask:
    """IS correction ``flash_mask``."""

    def __init__(self, config: FlashMaskConfig) -> None:
        self.config = config

    def __call__(
        self,
        old_logprobs: Float[torch.Tensor, "b a"],
        rollout_logprobs: Float[torch.Tensor, "b a"],
        action_mask: Bool[torch.Tensor, "b a"],
    ) -> Correction:
        log_ratio = log_ratios(old_logprobs, rollout_logprobs, action_mask)  # (B, A)
        p, q = probability(rollout_logprobs), probability(old_logprobs)  # (B, A)
        binary_kl = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
        keep = row_mean(binary_kl, action_mask) <= self.config.high  # (B, 1)
        ratio = ratios(log_ratio)  # q / p, which are not bounded here
        weights = at_most(ratio, self.config.max_weight)
        return correction(ratio, weights, keep, action_mask, old_logprobs.dtype)


COMPONENT = Component(
    name="flash_mask",
    factory=FlashMask,
    config=FlashMaskConfig,
    summary="sequences with a large mean binary KL are dropped (FlashREINFORCE)",
    needs=NEEDS,
    conflicts=CONFLICTS,
)
