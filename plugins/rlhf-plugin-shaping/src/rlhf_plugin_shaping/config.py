"""Options of the shapers. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf_core import Config

_LARGEST = 1e6


class OverlongConfig(Config):
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="action tokens that an episode may have; when unset, each turn is measured against "
        "rollout.max_new_tokens instead",
    )
    buffer: int | None = Field(
        None,
        ge=1,
        description="tokens before the limit over which the penalty grows; a fifth of the limit when unset",
    )
    factor: float = Field(
        1.0, ge=0.0, le=_LARGEST, description="the penalty at the limit, in units of the reward"
    )

    @model_validator(mode="after")
    def _the_buffer_fits(self) -> OverlongConfig:
        if self.max_tokens is not None and (self.buffer or 0) > self.max_tokens:
            raise ValueError(
                f"buffer is {self.buffer}, expected at most max_tokens = {self.max_tokens}"
            )
        return self


class StopProperlyConfig(Config):
    coef: float = Field(
        0.0,
        ge=-_LARGEST,
        le=1.0,
        description="of truncated samples: from 0 to 1, what their reward is multiplied by; below 0, what it becomes",
    )


class ClipConfig(Config):
    low: float = Field(-10.0, ge=-_LARGEST, le=_LARGEST, description="smallest reward")
    high: float = Field(10.0, ge=-_LARGEST, le=_LARGEST, description="largest reward")

    @model_validator(mode="after")
    def _not_empty(self) -> ClipConfig:
        if self.low >= self.high:
            raise ValueError(f"low is {self.low:g}, expected less than high = {self.high:g}")
        return self


class NormalizeConfig(Config):
    of: Literal["total", "episode"] = Field(
        "total",
        description="total: the episode's score and the rewards of its turns together; episode: the score alone",
    )
    eps: float = Field(
        1e-4,
        ge=1e-6,
        le=1.0,
        description="added to the standard deviation, in units of the reward",
    )


class LengthBonusConfig(Config):
    mode: Literal["group", "token"] = Field(
        "group",
        description="group: by rank between the shortest and the longest sample of the prompt; token: by action token",
    )
    weight: float = Field(
        1.0,
        ge=0.0,
        le=_LARGEST,
        description="group: the shortest sample gets half of it, the longest minus half",
    )
    per_token: float = Field(
        -1e-4, ge=-1.0, le=1.0, description="token: added per action token; below 0, a malus"
    )
    only_correct: bool = Field(
        False, description="leave samples that are not correct as they are, in both modes"
    )
    correct_above: float = Field(
        0.0, ge=-_LARGEST, le=_LARGEST, description="samples that earned more than this are correct"
    )

    def needed_by_options(self) -> frozenset[str]:
        """Comparing lengths needs somebody to compare with."""
        return frozenset({"group>=2"}) if self.mode == "group" else frozenset()
