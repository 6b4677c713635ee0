"""Metrics reduce exactly: the value does not depend on how the samples were cut."""

import pytest

from rlhf_core.batch.metric import merge_updates
from rlhf_core.contracts import Metric, merge_metrics, metric_values


def test_a_mean_over_parts_equals_the_mean_over_all():
    # (1 + 2 + 3 + 10) / 4 = 4, however it is cut; the mean of means would be (2 + 10) / 2 = 6
    parts = [{"x": Metric(6.0, 3)}, {"x": Metric(10.0, 1)}]

    assert metric_values(merge_metrics(parts)) == {"x": 4.0}


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("sum", 7.0), ("share", 7.0), ("max", 4.0), ("min", 3.0), ("last", 3.0)],
)
def test_other_reductions(reduction, expected):
    merged = Metric(4.0, reduction=reduction).merge(Metric(3.0, reduction=reduction))

    assert merged.value() == expected


def test_a_mean_over_nothing_is_left_out():
    assert metric_values({"empty": Metric(0.0, 0)}) == {}


def test_different_reductions_do_not_merge():
    with pytest.raises(ValueError, match="sum metric with a max metric"):
        Metric(1.0, reduction="sum").merge(Metric(1.0, reduction="max"))


def test_shares_add_up_within_an_update_and_updates_are_averaged():
    # Two updates of two micro-batches: losses 1 + 3 = 4 and 2 + 0 = 2, whose mean is 3; counts go on adding up.
    updates = [
        merge_metrics(
            {"loss": Metric(part, reduction="share"), "passes": Metric(1, reduction="sum")}
            for part in parts
        )
        for parts in ((1.0, 3.0), (2.0, 0.0))
    ]

    assert metric_values(merge_updates(updates)) == {"loss": 3.0, "passes": 4.0}


def test_the_other_reductions_do_not_know_updates():
    for reduction in ("mean", "sum", "max", "min", "last"):
        metric = Metric(3.0, 2.0, reduction)

        assert metric.of_update() == metric
