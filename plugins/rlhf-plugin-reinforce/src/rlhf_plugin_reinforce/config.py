"""Options of ``reinforce``, ``reinforce_baseline`` and ``rloo``. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config

Whitening = Literal["full", "mean", "none"]
_WHITEN = (
    "over all action tokens of the batch: full: zero mean, unit variance; mean: zero mean only"
)


class ReinforceConfig(Config):
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount per action token")
    whiten: Whitening = Field("full", description=_WHITEN)


class ReinforceBaselineConfig(Config):
    whiten: Whitening = Field("full", description=_WHITEN)


class RlooConfig(Config):
    """RLOO has no options."""
