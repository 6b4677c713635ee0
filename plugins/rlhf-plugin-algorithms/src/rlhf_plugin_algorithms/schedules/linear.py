"""A learning rate that falls in equal steps."""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.capabilities import ENDS_AT_FLOOR
from rlhf_core.contracts import SchedulePoint


def linear(progress: float, floor: float) -> float:
    """Return ``1 - (1 - floor) * progress``; ``floor = 1`` gives the constant rate."""
    return 1.0 - (1.0 - floor) * progress


class Linear:
    """See ``linear``; the floor is ``min_lr_ratio`` of the role."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, point: SchedulePoint) -> float:
        return linear(point.progress, point.min_lr_ratio)


COMPONENT = Component(
    name="linear",
    factory=Linear,
    summary="falls in equal steps to the floor",
    provides=frozenset({ENDS_AT_FLOOR}),
)
