"""Skipped updates are counted in a row, and end the run at the limit."""

import pytest

from rlhf_core import NonFiniteError
from rlhf_core.batch.metric import Metric
from rlhf_testing.errors import has_code
from rlhf_trainer.learning.minibatches import count_skipped

GOOD = {"train/skipped_updates": Metric(0.0, reduction="sum")}
SKIPPED = {"train/skipped_updates": Metric(1.0, reduction="sum")}


def count(before, metrics, limit=3):
    return count_skipped(before, metrics, role="policy", limit=limit, look_at="the data")


def test_skipped_updates_in_a_row_are_counted():
    assert count(0, SKIPPED) == 1
    assert count(1, SKIPPED) == 2


@pytest.mark.parametrize("metrics", [GOOD, {}])
def test_an_update_that_was_not_skipped_starts_the_count_anew(metrics):
    assert count(2, metrics) == 0


def test_the_limit_ends_the_run_with_the_number_and_the_advice():
    with pytest.raises(
        NonFiniteError,
        match=r"^3 updates of the policy in a row .* look at the data$",
        check=has_code("training/gradient-not-finite"),
    ):
        count(2, SKIPPED)


def test_metrics_that_are_not_finite_are_named_for_the_cause_is_among_them():
    nan, inf = Metric(float("nan")), Metric(float("inf"), 2.0)
    metrics = {**SKIPPED, "loss/policy": Metric(0.5), "loss/kl": nan, "kl/ref": inf}

    with pytest.raises(
        NonFiniteError,
        match=r"Of its metrics kl/ref, loss/kl are not finite ei",
        check=has_code("training/gradient-not-finite"),
    ):
        count(0, metrics, limit=1)
    with pytest.raises(
        NonFiniteError,
        match=r"Of its metrics loss/kl is not finite either",
        check=has_code("training/gradient-not-finite"),
    ):
        count(0, {**SKIPPED, "loss/kl": nan}, limit=1)


def test_a_limit_of_1_allows_none():
    with pytest.raises(
        NonFiniteError, match=r"^1 updates", check=has_code("training/gradient-not-finite")
    ):
        count(0, SKIPPED, limit=1)
    assert count(0, GOOD, limit=1) == 0
