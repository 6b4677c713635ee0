"""The learning rate of a role at each of its updates, worked out before anything is built."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from rlhf_config.common import TrainedRole
from rlhf_config.resolved import Selection
from rlhf_core.called import asking
from rlhf_core.contracts.backend import ScheduleSpec
from rlhf_core.contracts.functions.schedule import LrSchedule, SchedulePoint
from rlhf_core.errors import ConfigError


def schedule_of(selection: Selection | None, role: TrainedRole, updates: int) -> ScheduleSpec:
    """Return the learning-rate schedule of a role over so many updates.

    Args:
        selection: the chosen schedule; None: the peak rate after the warm-up.

    Raises:
        ConfigError: the schedule gives a share that is no finite number of at least 0; it names the update.
        PluginError: the schedule raised.
    """
    warmup = int(role.warmup_ratio * updates)
    rising = [warmup_factor(update, warmup, role.init_lr_ratio) for update in range(warmup)]
    if selection is None:
        return ScheduleSpec(factors=(*rising, 1.0))
    schedule: LrSchedule = selection.build()
    first = SchedulePoint(
        update=warmup, warmup_updates=warmup, total_updates=updates, min_lr_ratio=role.min_lr_ratio
    )
    after = [
        _factor(schedule, replace(first, update=update), selection.label)
        # If all updates are warm-up, one more share: what follows the last update.
        for update in range(warmup, max(updates, warmup + 1) + 1)
    ]
    return ScheduleSpec(name=selection.registered.name, factors=(*rising, *after))


def warmup_factor(update: int, warmup_updates: int, start: float = 0.0) -> float:
    """Return ``start + (1 - start) (update + 1) / (warmup_updates + 1)``: the first update already changes the weights,
    and the first one after the warm-up has the peak rate."""
    return start + (1.0 - start) * (update + 1) / (warmup_updates + 1)


def _factor(schedule: LrSchedule, point: SchedulePoint, who: str) -> float:
    with asking(f"{who}: at update {point.update} of {point.total_updates} it"):
        factor: Any = schedule(point)
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not is_number or not math.isfinite(factor) or factor < 0:
        raise ConfigError(
            f"{who}: expected a share of the peak learning rate at update {point.update} of {point.total_updates}, a "
            f"finite number of at least 0; got {factor!r}. Choose other options of the schedule, or another schedule.",
            code="config/learning-rate",
        )
    return float(factor)
