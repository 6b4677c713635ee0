"""The share of the peak learning rate by the number of the update."""

from rlhf_core.contracts import ScheduleSpec


def test_a_share_is_looked_up_and_the_last_one_goes_on():
    spec = ScheduleSpec(factors=(0.5, 1.0, 0.25))

    assert [spec.factor(update) for update in (0, 1, 2, 3, 99)] == [0.5, 1.0, 0.25, 0.25, 0.25]


def test_the_default_is_the_peak():
    assert [ScheduleSpec().factor(update) for update in (0, 7)] == [1.0, 1.0]
