"""Options of the losses. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf_core import Config


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


class DppoConfig(Config):
    divergence: Literal["tv", "kl"] = Field(
        "tv",
        description="what the trust region bounds, of 'this token or another': tv: the change of its probability; "
        "kl: the KL divergence from the old policy",
    )
    threshold: float | None = Field(
        None,
        gt=0.0,
        le=100.0,
        description="a token that is farther away, and would be moved on, is dropped; none: 0.15 for tv, 0.05 for kl",
    )
    max_ratio: float | None = Field(
        20.0, ge=1.0, le=1e6, description="upper bound of a token's weight; none: no bound"
    )


class ToprConfig(Config):
    """TOPR has no options: the weight of a good sequence is 1, that of a bad one between 0 and 1."""


class DecoupledPpoConfig(Config):
    clip_low: float = Field(
        0.2,
        gt=0.0,
        le=1.0,
        description="the ratio to the old policy counts down to 1 - clip_low; 1: no lower bound",
    )
    clip_high: float = Field(
        0.2, gt=0.0, le=10.0, description="the ratio to the old policy counts up to 1 + clip_high"
    )
    max_weight: float | None = Field(
        5.0,
        ge=1.0,
        le=1e6,
        description="bound of the weight old / rollout of a token; none: no bound",
    )
    beyond: Literal["drop", "truncate"] = Field(
        "drop",
        description="tokens with a larger weight than max_weight: drop them, or give them max_weight",
    )

    @model_validator(mode="after")
    def _refuse_to_truncate_without_a_bound(self) -> DecoupledPpoConfig:
        if self.max_weight is None and self.beyond == "truncate":
            raise ValueError(
                "beyond truncate sets weights to max_weight, which is none: nothing would be truncated. "
                "Set max_weight, or leave beyond out."
            )
        return self
