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

from .weighting import CONFLICTS, NEEDS, correction, log_ratios, ratios


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
        log_ratio = log_ratios(old_logprobs, rollout_logprobs, action_mask)  # (B, A) g_t
        ratio = ratios(log_ratio)
        weights = ratio.clamp(min=self.config.low, max=self.config.high)  # w_t
        keep = torch.ones_like(action_mask)
        return correction(ratio, weights, keep, action_mask, old_logprobs.dtype)


COMPONENT = Component(
    name="tis",
    factory=Tis,
    config=TisConfig,
    summary="each token's weight, truncated (TIS)",
    needs=NEEDS,
    conflicts=CONFLICTS,
)
