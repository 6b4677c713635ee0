"""Learning-rate schedules: from the number of an update to a share of the peak learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePoint:
    """An update after the warm-up."""

    update: int
    """Number of the update, 0 for the run's first; at least ``warmup_updates``, at most ``total_updates``, or one
    more where all of these are warm-up."""
    warmup_updates: int
    """Updates of the warm-up, during which the core lets the rate rise in equal steps."""
    total_updates: int
    """Updates of the whole run, at least 1; the last point stands for all updates beyond it."""
    min_lr_ratio: float
    """Floor, as a share of the peak: the option of the role, for schedules that have one."""

    @property
    def progress(self) -> float:
        """Share of the updates after the warm-up that are done, from 0 to 1."""
        return self.progress_to(1.0)

    def progress_to(self, share: float) -> float:
        """Return how much is done, from 0 to 1, of the updates from the warm-up on to ``share`` of all updates; with 1
        it is ``progress``."""
        length = max(1, share * self.total_updates - self.warmup_updates)
        return min(1.0, (self.update - self.warmup_updates) / length)


class LrSchedule(Protocol):
    """The learning rate after the warm-up. It is asked for every update once, before the run builds anything."""

    def __call__(self, point: SchedulePoint) -> float:
        """Return the share of the peak learning rate: finite, at least 0, and a function of the point alone."""
