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

from .weighting import CONFLICTS, NEEDS, correction, log_ratios, ratios


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
        log_ratio = log_ratios(old_logprobs, rollout_logprobs, action_mask)  # (B, A) g
        ratio = ratios(log_ratio.sum(dim=1, keepdim=True))  # (B, 1) w
        keep = ratio <= self.config.high
        if self.config.low is not None:
            keep = keep & (ratio >= self.config.low)
        return correction(ratio, ratio, keep, action_mask, old_logprobs.dtype)


COMPONENT = Component(
    name="mis",
    factory=Mis,
    config=MisConfig,
    summary="sequences with a large ratio are dropped; the others carry it (Seq-MIS)",
    needs=NEEDS,
    conflicts=CONFLICTS,
)
