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
from rlhf_core.math import importance_metrics, importance_weights


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
        description="upper bound of the weight that a kept token carries; none: no bound",
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
        result = importance_weights(
            old_logprobs,
            rollout_logprobs,
            action_mask,
            level="geometric",
            mode="mask",
            gate="binary_kl",
            high=self.config.high,
            weight="token",
            max_weight=self.config.max_weight,
        )
        return Correction(
            weights=result.weights,
            keep=result.keep,
            metrics=importance_metrics(result, action_mask),
        )


COMPONENT = Component(
    name="flash_mask",
    factory=FlashMask,
    config=FlashMaskConfig,
    summary="sequences with a large mean binary KL are dropped (FlashREINFORCE)",
    needs=frozenset({"rollout_logprobs"}),
    # The sampler's log-probs would be of another distribution, or the very numbers that they are compared with.
    conflicts=frozenset({"renormalized_sampling", "rollout_as_old"}),
)
