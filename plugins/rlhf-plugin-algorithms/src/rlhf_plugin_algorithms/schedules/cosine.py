"""A learning rate that falls along half a cosine: slowly at first and at the end."""

from __future__ import annotations

import math

from rlhf_core import Component, Config
from rlhf_core.capabilities import ENDS_AT_FLOOR
from rlhf_core.contracts import SchedulePoint


def cosine(progress: float, floor: float) -> float:
    """Return ``floor + (1 - floor) (1 + cos(pi * progress)) / 2``; ``floor = 1`` gives the constant rate.

    Source: Loshchilov and Hutter 2016, arXiv:1608.03983, without restarts.
    """
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


class Cosine:
    """See ``cosine``; the floor is ``min_lr_ratio`` of the role."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, point: SchedulePoint) -> float:
        return cosine(point.progress, point.min_lr_ratio)


COMPONENT = Component(
    name="cosine",
    factory=Cosine,
    summary="falls along half a cosine to the floor",
    provides=frozenset({ENDS_AT_FLOOR}),
)
