"""A learning rate that falls in equal steps."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.capabilities import ENDS_AT_FLOOR
from rlhf_core.contracts import SchedulePoint


class LinearConfig(Config):
    end_share: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="share of all updates, those of the warm-up included, after which the rate is at its floor; 1: "
        "it falls to the end of the run",
    )


def linear(progress: float, floor: float) -> float:
    """Return ``1 - (1 - floor) * progress``; ``floor = 1`` gives the constant rate."""
    return 1.0 - (1.0 - floor) * progress


class Linear:
    """See ``linear``; the floor is ``min_lr_ratio`` of the role."""

    def __init__(self, config: LinearConfig) -> None:
        self.config = config

    def __call__(self, point: SchedulePoint) -> float:
        return linear(point.progress_to(self.config.end_share), point.min_lr_ratio)


COMPONENT = Component(
    name="linear",
    factory=Linear,
    config=LinearConfig,
    summary="falls in equal steps to the floor",
    provides=frozenset({ENDS_AT_FLOOR}),
)
