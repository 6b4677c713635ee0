"""A learning rate that falls as one over the root of the updates: it does not depend on where the run ends."""

from __future__ import annotations

import math

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import SchedulePoint


class InverseSqrtConfig(Config):
    timescale: int | None = Field(
        None,
        ge=1,
        description="number of updates after the warm-up in which the rate falls to 0.71 of its peak; unset: as many "
        "as the warm-up has, at least 1",
    )


def inverse_sqrt(updates: int, timescale: int) -> float:
    """Return ``sqrt(timescale / (timescale + updates))``: 1 at first, a half after three timescales.

    Args:
        updates: number of updates since the end of the warm-up.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 5.3, where the timescale is the warm-up's length.
    """
    return math.sqrt(timescale / (timescale + updates))


class InverseSqrt:
    """See ``inverse_sqrt``."""

    def __init__(self, config: InverseSqrtConfig) -> None:
        self.config = config

    def __call__(self, point: SchedulePoint) -> float:
        timescale = self.config.timescale or max(1, point.warmup_updates)
        return inverse_sqrt(point.update - point.warmup_updates, timescale)


COMPONENT = Component(
    name="inverse_sqrt",
    factory=InverseSqrt,
    config=InverseSqrtConfig,
    summary="falls as one over the square root of the updates, whatever the length of the run",
)
