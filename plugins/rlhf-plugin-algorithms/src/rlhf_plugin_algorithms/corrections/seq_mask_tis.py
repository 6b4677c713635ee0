"""Sequence masks with token weights: sequences whose geometric mean ratio leaves a band are dropped as a whole.

A sequence is kept where ``low <= exp(mean over the row of g) <= high``, with ``g = log trainer - log sampler``. Tokens
of kept sequences carry their own weight ``min(exp(g_t), max_weight)``.

Source: Liu et al. 2025, https://richardli.xyz/rl-collapse, for the masks; Yao et al. 2025,
https://fengyao.notion.site/off-policy-rl, for the weights; NeMo RL for the combination and its name.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Correction
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import row_mean

from .weighting import CONFLICTS, NEEDS, at_most, correction, log_ratios, ratios


class SeqMaskTisConfig(Config):
    low: float = Field(
        0.999,
        ge=1e-6,
        le=1.0,
        description="sequences with a smaller geometric mean ratio are dropped",
    )
    high: float = Field(
        1.002,
        ge=1.0,
        le=1e6,
        description="sequences with a larger geometric mean ratio are dropped",
    )
    max_weight: float | None = Field(
        None,
        ge=1.0,
        le=1e6,
        description="largest weight of a kept token; none: no bound",
    )


class SeqMaskTis:
    """IS correction ``seq_mask_tis``."""

    def __init__(self, config: SeqMaskTisConfig) -> None:
        self.config = config

    def __call__(
        self,
        old_logprobs: Float[torch.Tensor, "b a"],
        rollout_logprobs: Float[torch.Tensor, "b a"],
        action_mask: Bool[torch.Tensor, "b a"],
    ) -> Correction:
        log_ratio = log_ratios(old_logprobs, rollout_logprobs, action_mask)  # (B, A) g
        mean_ratio = ratios(row_mean(log_ratio, action_mask))  # (B, 1)
        keep = (mean_ratio >= self.config.low) & (mean_ratio <= self.config.high)
        ratio = ratios(log_ratio)  # (B, A)
        weights = at_most(ratio, self.config.max_weight)
        return correction(ratio, weights, keep, action_mask, old_logprobs.dtype)


COMPONENT = Component(
    name="seq_mask_tis",
    factory=SeqMaskTis,
    config=SeqMaskTisConfig,
    summary="sequences whose mean ratio leaves a band are dropped; the others carry token weights",
    needs=NEEDS,
    conflicts=CONFLICTS,
)
