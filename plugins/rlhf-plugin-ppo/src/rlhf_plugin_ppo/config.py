"""Options of ``gae`` and ``ppo``. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config


class GaeConfig(Config):
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount per action token")
    lambda_: float = Field(
        0.95,
        ge=0.0,
        le=1.0,
        description="1: observed returns minus value; 0: one-step TD error; high for long responses",
    )
    value_lambda_: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="lambda of the critic's targets; none: the same; 1: observed returns (VC-PPO, VAPO)",
    )
    bootstrap_truncated: bool = Field(
        False,
        description="add the critic's value of what a truncated response was still going to earn",
    )
    whiten: Literal["full", "mean", "none"] = Field(
        "full",
        description="over all action tokens of the batch: full: zero mean, unit variance; mean: zero mean only",
    )

    def needed_by_options(self) -> frozenset[str]:
        """Bootstrapping needs the value of the state after the last token."""
        return frozenset({"final_values"}) if self.bootstrap_truncated else frozenset()


class PpoLossConfig(Config):
    clip_low: float = Field(
        0.2, gt=0.0, le=1.0, description="the ratio counts down to 1 - clip_low; 1: no lower bound"
    )
    clip_high: float = Field(
        0.2,
        gt=0.0,
        le=10.0,
        description="the ratio counts up to 1 + clip_high; above clip_low it is clip-higher (DAPO: 0.28)",
    )
    dual_clip: float | None = Field(
        None,
        gt=1.0,
        le=100.0,
        description="bound the loss of a negative advantage by this multiple of it; none: do not",
    )
