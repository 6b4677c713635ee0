"""Warm-up, stable, decay: the peak rate until the last part of the run, in which it falls.

The stable part does not depend on where the run ends, so a run may be prolonged from a checkpoint of that part.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.capabilities import ENDS_AT_FLOOR
from rlhf_core.contracts import SchedulePoint

Form = Literal["linear", "sqrt"]


class WsdConfig(Config):
    decay_share: float = Field(
        0.2,
        gt=0.0,
        le=1.0,
        description="share of the updates after the warm-up, the last ones, in which the rate falls",
    )
    form: Form = Field(
        "sqrt", description="form of the decay: sqrt falls fast at first, linear in equal steps"
    )


def wsd(progress: float, floor: float, decay_share: float, form: Form) -> float:
    """Return 1 up to ``progress = 1 - decay_share``, and then ``floor + (1 - floor) (1 - d)``.

    ``d`` is the share of the decay that is done, or with ``sqrt`` its square root. ``decay_share = 1`` with ``linear``
    gives the linear schedule.

    Source: Hu et al. 2024 (MiniCPM), arXiv:2404.06395, for the three parts, there with an exponential decay;
    Haegele et al. 2024, arXiv:2405.18392, for ``1 - sqrt`` over a fifth of the run.
    """
    done = max(0.0, (progress - (1.0 - decay_share)) / decay_share)
    fallen = math.sqrt(done) if form == "sqrt" else done
    return floor + (1.0 - floor) * (1.0 - fallen)


class Wsd:
    """See ``wsd``."""

    def __init__(self, config: WsdConfig) -> None:
        self.config = config

    def __call__(self, point: SchedulePoint) -> float:
        config = self.config
        return wsd(point.progress, point.min_lr_ratio, config.decay_share, config.form)


COMPONENT = Component(
    name="wsd",
    factory=Wsd,
    config=WsdConfig,
    summary="stays at the peak rate, and falls to the floor in the last part of the run",
    provides=frozenset({ENDS_AT_FLOOR}),
)
