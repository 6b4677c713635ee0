"""Schedule of the learning rate over a run."""

from __future__ import annotations

import math

from ..contracts.backend import ScheduleSpec


def lr_factor(schedule: ScheduleSpec, update: int) -> float:
    """Return the share of the peak learning rate for the given update (0 is the first).

    Warm-up over w updates: ``(update + 1) / (w + 1)``, so that the first update already changes the weights and the
    first one after the warm-up has the peak rate. Then, with ``x = (update - w) / (total - w)``, clamped to 1, and the
    floor m = ``min_lr_ratio``: constant ``1``; linear ``1 - (1 - m) x``; cosine ``m + (1 - m) (1 + cos(pi x)) / 2``.
    Updates after the last stay at the floor.
    """
    warmup = schedule.warmup_updates
    if update < warmup:
        return (update + 1) / (warmup + 1)
    if schedule.name == "constant":
        return 1.0
    done = min(1.0, (update - warmup) / max(1, schedule.total_updates - warmup))
    floor = schedule.min_lr_ratio
    if schedule.name == "linear":
        return 1.0 - (1.0 - floor) * done
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))
