"""IcePop: tokens whose ratio leaves a band are dropped; the others carry it as their weight.

``w_t = exp(g_t)`` where ``low <= exp(g_t) <= high``, with ``g_t = log trainer - log sampler``; tokens outside are
dropped: a token on which trainer and sampler disagree is not weighted down but left out.

Source: Ling Team 2025, arXiv:2510.18855.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Correction
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import importance_metrics, importance_weights


class IcepopConfig(Config):
    low: float = Field(0.5, ge=1e-6, le=1.0, description="tokens with a smaller ratio are dropped")
    high: float = Field(5.0, ge=1.0, le=1e6, description="tokens with a larger ratio are dropped")


class Icepop:
    """IS correction ``icepop``."""

    def __init__(self, config: IcepopConfig) -> None:
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
            level="token",
            mode="mask",
            gate="ratio",
            low=self.config.low,
            high=self.config.high,
        )
        return Correction(
            weights=result.weights,
            keep=result.keep,
            metrics=importance_metrics(result, action_mask),
        )


COMPONENT = Component(
    name="icepop",
    factory=Icepop,
    config=IcepopConfig,
    summary="tokens whose ratio leaves a band are dropped (IcePop)",
    needs=frozenset({"rollout_logprobs"}),
    # The sampler's log-probs would be of another distribution, or the very numbers that they are compared with.
    conflicts=frozenset({"renormalized_sampling", "rollout_as_old"}),
)
