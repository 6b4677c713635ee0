"""Options of the filters. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from pydantic import Field, model_validator

from rlhf_core import Config

_LARGEST = 1e6


class DynamicSamplingConfig(Config):
    low: float = Field(
        0.0, ge=-_LARGEST, le=_LARGEST, description="the mean reward has to be more than this"
    )
    high: float = Field(
        1.0, ge=-_LARGEST, le=_LARGEST, description="the mean reward has to be less than this"
    )
    reward: str | None = Field(
        None,
        description="name of the reward to look at, as it was given; what samples earned in all, after the shapers, "
        "when unset",
    )

    @model_validator(mode="after")
    def _not_empty(self) -> DynamicSamplingConfig:
        if self.low >= self.high:
            raise ValueError(f"low is {self.low:g}, expected less than high = {self.high:g}")
        return self


class ZeroVarianceConfig(Config):
    max_std: float = Field(
        1e-6,
        ge=0.0,
        le=_LARGEST,
        description="standard deviation up to which the samples of a prompt earned the same, in units of the reward",
    )


class DropStaleConfig(Config):
    limit: int = Field(
        4, ge=0, le=1_000_000, description="versions that a token's weights may lie behind"
    )


class DropErrorsConfig(Config):
    metric: str = Field(
        "error", min_length=1, description="name of the metric that is more than 0 at an error"
    )
    max_share: float = Field(
        0.0, ge=0.0, lt=1.0, description="share of a prompt's samples that may report one"
    )
