"""The peak learning rate, to the end of the run."""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.contracts import SchedulePoint


class Constant:
    """Schedule that gives 1 at every update."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, point: SchedulePoint) -> float:
        del point
        return 1.0


COMPONENT = Component(
    name="constant",
    factory=Constant,
    summary="stays at the peak rate after the warm-up",
)
