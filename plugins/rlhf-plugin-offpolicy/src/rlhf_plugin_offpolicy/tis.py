"""TIS, truncated importance sampling: each token is weighted with its ratio, at most ``high``.

``w_t = min(exp(g_t), high)`` with ``g_t = log trainer - log sampler``; with a lower bound ``w_t = clamp(exp(g_t), low,
high)``. Nothing is dropped. Equal log-probs give weight 1.

Source: Yao et al. 2025, https://fengyao.notion.site/off-policy-rl, after Ionides 2008.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Correction
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import importance_metrics, importance_weights


class TisConfig(Config):
    high: float = Field(2.0, ge=1.0, le=1e6, description="largest weight of a token")
    low: float | None = Field(
        None, ge=1e-6, le=1.0, description="smallest weight of a token; none: no lower bound"
    )


class Tis:
    """IS correction ``tis``."""

    def __init__(self, config: TisConfig) -> None:
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
            mode="truncate" if self.config.low is None else "clip",
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
    name="tis",
    factory=Tis,
    config=TisConfig,
    summary="each token's weight, truncated (TIS)",
    needs=frozenset({"rollout_logprobs"}),
    # The sampler's log-probs would be of another distribution, or the very numbers that they are compared with.
    conflicts=frozenset({"renormalized_sampling", "rollout_as_old"}),
)
