"""Seq-MIS, masked importance sampling of sequences: a sequence with a large ratio is dropped, the others carry theirs.

``w = exp(sum over the row of g)`` at every token, with ``g = log trainer - log sampler``; a sequence is kept where
``low <= w <= high``. Only the weight of a whole sequence is unbiased; its variance grows with the length, and the mask
bounds it.

Source: Liu et al. 2025, https://richardli.xyz/rl-collapse.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Correction
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import importance_metrics, importance_weights


class MisConfig(Config):
    high: float = Field(
        2.0, ge=1.0, le=1e6, description="sequences with a larger ratio are dropped"
    )
    low: float | None = Field(
        None,
        ge=1e-6,
        le=1.0,
        description="sequences with a smaller ratio are dropped; none: no lower bound",
    )


class Mis:
    """IS correction ``mis``."""

    def __init__(self, config: MisConfig) -> None:
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
            level="sequence",
            mode="mask",
            gate="ratio",
            low=self.config.low,
            high=self.config.high,
            weight="sequence",
        )
        return Correction(
            weights=result.weights,
            keep=result.keep,
            metrics=importance_metrics(result, action_mask),
        )


COMPONENT = Component(
    name="mis",
    factory=Mis,
    config=MisConfig,
    summary="sequences with a large ratio are dropped; the others carry it (Seq-MIS)",
    needs=frozenset({"rollout_logprobs"}),
    # The sampler's log-probs would be of another distribution, or the very numbers that they are compared with.
    conflicts=frozenset({"renormalized_sampling", "rollout_as_old"}),
)
