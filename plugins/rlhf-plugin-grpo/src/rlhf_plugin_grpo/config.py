"""Options of ``group_norm`` and ``dr_grpo``. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config


class GroupNormConfig(Config):
    eps: float = Field(
        1e-4,
        ge=1e-6,
        le=1.0,
        description="added to the standard deviation, in units of the reward",
    )
    std: Literal["sample", "population"] = Field(
        "sample", description="divide the squared deviations of n samples by n - 1, or by n"
    )


class DrGrpoConfig(Config):
    """Dr. GRPO has no options; its other half is --algo.loss.aggregation seq-mean-token-sum-norm."""
