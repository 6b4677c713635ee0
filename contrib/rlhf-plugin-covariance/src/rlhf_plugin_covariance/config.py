"""Options of ``clip_cov`` and ``kl_cov``. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from pydantic import Field, model_validator

from rlhf_core import Config


class ClipCovConfig(Config):
    fraction: float = Field(
        2e-4,
        gt=0.0,
        le=1.0,
        description="share of the step's action tokens that get no gradient; at least one token",
    )
    cov_low: float = Field(
        1.0,
        ge=0.0,
        le=1e6,
        description="they are drawn among tokens whose covariance is above this, in nats times advantage",
    )
    cov_high: float = Field(
        5.0,
        gt=0.0,
        le=1e6,
        description="... and below this: the few tokens beyond are left alone",
    )
    clip_low: float = Field(
        1.0, gt=0.0, le=1.0, description="the ratio counts down to 1 - clip_low; 1: no lower bound"
    )
    clip_high: float = Field(
        1.0, gt=0.0, le=10.0, description="the ratio counts up to 1 + clip_high"
    )

    @model_validator(mode="after")
    def _bounds_in_order(self) -> ClipCovConfig:
        if self.cov_low >= self.cov_high:
            raise ValueError(
                f"cov_low is {self.cov_low} and cov_high {self.cov_high}; expected cov_low below cov_high, "
                "else no token is ever drawn"
            )
        return self


class KlCovConfig(Config):
    fraction: float = Field(
        2e-3,
        gt=0.0,
        le=1.0,
        description="share of the step's action tokens that are penalized; at least one token",
    )
    kl_coef: float = Field(
        1.0,
        gt=0.0,
        le=100.0,
        description="what the absolute log-ratio of a penalized token is multiplied with",
    )
