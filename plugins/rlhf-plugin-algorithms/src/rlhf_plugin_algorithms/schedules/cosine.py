"""A learning rate that falls along half a cosine, slowly at first and at the end, or along several cycles."""

from __future__ import annotations

import math

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.capabilities import ENDS_AT_FLOOR
from rlhf_core.contracts import SchedulePoint


class CosineConfig(Config):
    num_cycles: float = Field(
        0.5,
        gt=0.0,
        le=1000.0,
        description="number of waves of the cosine; 0.5: the rate falls to its floor, 1: it rises to its peak again",
    )
    end_share: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="share of all updates, those of the warm-up included, after which the cosine ends, and the rate "
        "stays as it is there; 1: it goes on to the end of the run",
    )


def cosine(progress: float, floor: float, num_cycles: float = 0.5) -> float:
    """Return ``floor + (1 - floor) (1 + cos(2 pi * num_cycles * progress)) / 2``; ``floor = 1`` gives the constant
    rate, and half a cycle a rate that falls from 1 to the floor.

    Source: Loshchilov and Hutter 2016, arXiv:1608.03983, without restarts: after half a cycle the rate rises along the
    cosine again, as with the ``num_cycles`` of Transformers.
    """
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(2.0 * math.pi * num_cycles * progress))


class Cosine:
    """See ``cosine``; the floor is ``min_lr_ratio`` of the role."""

    def __init__(self, config: CosineConfig) -> None:
        self.config = config

    def __call__(self, point: SchedulePoint) -> float:
        progress = point.progress_to(self.config.end_share)
        return cosine(progress, point.min_lr_ratio, self.config.num_cycles)


COMPONENT = Component(
    name="cosine",
    factory=Cosine,
    config=CosineConfig,
    summary="falls along half a cosine to the floor",
    provides=frozenset({ENDS_AT_FLOOR}),
)
