"""Checks of learning-rate schedules (``contracts.LrSchedule``)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlhf_core.capabilities import ENDS_AT_FLOOR
from rlhf_core.contracts.functions.schedule import SchedulePoint

from ...subject import Subject, checks_in, traits

_RUNS = ((0, 1), (1, 1), (0, 7), (3, 40), (40, 40), (10, 2000))
"""Updates of the warm-up and of the whole run."""
_FLOORS = (0.0, 0.1, 1.0)


def _points(warmup: int, total: int, floor: float) -> list[SchedulePoint]:
    return [
        SchedulePoint(update=update, warmup_updates=warmup, total_updates=total, min_lr_ratio=floor)
        for update in range(warmup, total + 1)
    ]


def _runs() -> Iterator[list[SchedulePoint]]:
    return (_points(*run, floor) for run in _RUNS for floor in _FLOORS)


def _where(point: SchedulePoint) -> str:
    return (
        f"at update {point.update} of {point.total_updates}, {point.warmup_updates} of them warm-up, "
        f"with min_lr_ratio {point.min_lr_ratio}"
    )


def _factors(subject: Subject, points: list[SchedulePoint]) -> list[float]:
    schedule = subject.make()
    return [schedule(point) for point in points]


def _has_floor(subject: Subject) -> bool:
    return ENDS_AT_FLOOR in subject.provides


def check_a_share_at_every_update(subject: Subject) -> None:
    """A finite number of at least 0 at every update, in runs of one update and of warm-up alone too."""
    for points in _runs():
        for point, factor in zip(points, _factors(subject, points), strict=True):
            is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
            assert is_number, f"{factor!r} {_where(point)}, expected a number"
            assert math.isfinite(factor), f"{factor} {_where(point)}"
            assert factor >= 0, f"{factor:.6g} {_where(point)}, expected at least 0"


def check_a_function_of_the_point(subject: Subject) -> None:
    """A share depends on the update alone, not on which updates were asked for before: runs are resumed anywhere."""
    for points in _runs():
        forwards, backwards = _factors(subject, points), _factors(subject, points[::-1])[::-1]
        alone = subject.make()(points[-1])
        assert forwards == backwards, f"{forwards[:5]} asked in order, {backwards[:5]} in reverse"
        assert alone == forwards[-1], f"{alone} asked alone, {forwards[-1]} {_where(points[-1])}"


@traits(usual=True)
def check_the_peak_follows_the_warm_up(subject: Subject) -> None:
    """The first update after the warm-up has the peak rate, to which the warm-up rises."""
    for warmup, total in _RUNS:
        if warmup < total:
            point = _points(warmup, total, 0.1)[0]
            factor = subject.make()(point)
            assert abs(factor - 1) < 1e-6, f"{factor:.6g} {_where(point)}, expected 1"


@traits(usual=True)
def check_never_above_the_peak(subject: Subject) -> None:
    """No share is above 1: the optimizer's learning rate is the peak."""
    for points in _runs():
        for point, factor in zip(points, _factors(subject, points), strict=True):
            assert factor <= 1 + 1e-6, f"{factor:.6g} {_where(point)}"


@traits(_has_floor)
def check_it_ends_at_the_floor(subject: Subject) -> None:
    """The share after the last update is ``min_lr_ratio``: ``ends_at_floor`` is a promise."""
    for warmup, total in _RUNS:
        if warmup < total:
            for floor in _FLOORS:
                point = _points(warmup, total, floor)[-1]
                factor = subject.make()(point)
                assert abs(factor - floor) < 1e-6, f"{factor:.6g} {_where(point)}"


@traits(lambda subject: not _has_floor(subject))
def check_a_floor_is_declared(subject: Subject) -> None:
    """Without ``ends_at_floor`` the option ``min_lr_ratio`` changes nothing: runs refuse it where it is typed."""
    low, high = (_factors(subject, _points(3, 40, floor)) for floor in (0.0, 1.0))
    assert low == high, f"{low[-3:]} with min_lr_ratio 0, {high[-3:]} with 1"


CHECKS = checks_in(__name__)
