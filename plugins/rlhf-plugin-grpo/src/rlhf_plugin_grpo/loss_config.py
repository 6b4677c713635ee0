"""Options of ``gspo`` and ``gspo_token``. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config


class GspoConfig(Config):
    clip_low: float = Field(
        3e-4,
        gt=0.0,
        le=1.0,
        description="the sequence's ratio, a geometric mean over its tokens, counts down to 1 - clip_low",
    )
    clip_high: float = Field(
        4e-4,
        gt=0.0,
        le=10.0,
        description="the sequence's ratio, a geometric mean over its tokens, counts up to 1 + clip_high",
    )
