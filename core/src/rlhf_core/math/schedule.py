"""The learning rate of an update, by the schedule that a role was given."""

from __future__ import annotations

from ..contracts.backend import ScheduleSpec


def lr_factor(schedule: ScheduleSpec, update: int) -> float:
    """Return ``schedule.factor(update)``, for backends that were written before schedules had the method."""
    return schedule.factor(update)
