"""The learning rate of an update, by the schedule that a role was given."""

from __future__ import annotations

from ..contracts.backend import ScheduleSpec


def lr_factor(schedule: ScheduleSpec, update: int) -> float:
    """Return the share of the peak learning rate for the given update (0 is the first); the last one goes on."""
    return schedule.factors[min(update, len(schedule.factors) - 1)]
