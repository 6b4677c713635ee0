"""Learning rates by hand."""

import pytest

from rlhf_core.contracts import ScheduleSpec
from rlhf_core.math import lr_factor


def factors(name, updates, **options):
    spec = ScheduleSpec(name=name, **options)
    return [lr_factor(spec, update) for update in updates]


def test_warm_up_rises_in_equal_steps_to_the_peak():
    # three updates of warm-up: 1/4, 2/4, 3/4, then the peak
    actual = factors("constant", range(5), warmup_updates=3, total_updates=10)

    assert actual == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_without_warm_up_the_first_update_is_at_the_peak():
    assert factors("cosine", [0], total_updates=10) == [1.0]


def test_linear_falls_to_its_floor():
    # 1 - 0.9 x at x = 0, 1/4, 2/4, 3/4, 1, and past the end
    actual = factors(
        "linear", [2, 4, 6, 8, 10, 99], warmup_updates=2, total_updates=10, min_lr_ratio=0.1
    )

    assert actual == pytest.approx([1.0, 0.775, 0.55, 0.325, 0.1, 0.1])


def test_cosine_is_half_way_in_the_middle():
    # 0.2 + 0.8 (1 + cos(pi x)) / 2: x = 1/3 gives 0.2 + 0.8 * 0.75, x = 1/2 gives 0.6
    actual = factors("cosine", [0, 2, 3, 6, 50], total_updates=6, min_lr_ratio=0.2)

    assert actual == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])


def test_a_run_that_is_all_warm_up_does_not_divide_by_zero():
    assert factors("linear", [3, 4], warmup_updates=4, total_updates=4) == pytest.approx([0.8, 1.0])
