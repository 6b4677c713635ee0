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

from .weighting import CONFLICTS, NEEDS, correction, log_ratios, ratios


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
        log_ratio = log_ratios(old_logprobs, rollout_logprobs, action_mask)  # (B, A) g_t
        ratio = ratios(log_ratio)  # w_t
        keep = (ratio >= self.config.low) & (ratio <= self.config.high)
        return correction(ratio, ratio, keep, action_mask, old_logprobs.dtype)


COMPONENT = Component(
    name="icepop",
    factory=Icepop,
    config=IcepopConfig,
    summary="tokens whose ratio leaves a band are dropped (IcePop)",
    needs=NEEDS,
    conflicts=CONFLICTS,
)
