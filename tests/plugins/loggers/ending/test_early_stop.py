"""The ends of runs by a metric, by hand."""

import math

import pytest

from rlhf_core.contracts import RunResult
from rlhf_plugin_loggers.ending.early_stop import COMPONENT, EarlyStop, EarlyStopConfig
from rlhf_testing.conformance import checks_of, subject

PASSED = "eval/test/T0/pass@1"


@pytest.mark.parametrize("check", checks_of("rlhf_observers"), ids=lambda check: check.name)
@pytest.mark.parametrize(
    "options",
    [{}, {"metric": "eval/held_out/T0/reward", "patience": 3}, {"patience": 0, "target": 0.5}],
    ids=["steps", "evaluations", "target"],
)
def test_contract(options, check):
    check(subject(COMPONENT, **options))


def ended_at(values, **options):
    """Number of the value, from 1, at which the run ends, and the reason; None if it does not."""
    stop = EarlyStop(EarlyStopConfig(**options))
    for step, value in enumerate(values, start=1):
        answer = stop.step_end(step, {"reward/mean": value})
        if answer is not None:
            return step, answer.reason
    return None


@pytest.mark.parametrize(
    ("values", "options", "step"),
    [
        # The best is the second value, and the third and fourth are not better.
        ([1, 2, 2, 1, 3], {"patience": 2}, 4),
        ([1, 2, 2, 3, 3], {"patience": 2}, None),
        ([3, 2, 3, 1], {"patience": 2, "mode": "min"}, None),
        ([3, 2, 3, 2], {"patience": 2, "mode": "min"}, 4),
        # 1.5 is no more than 1 + 0.5; 1.75 is.
        ([1, 1.5, 1.5], {"patience": 2, "min_delta": 0.5}, 3),
        ([1, 1.75, 1.5], {"patience": 2, "min_delta": 0.5}, None),
        ([math.nan, math.nan, 1], {"patience": 2}, 2),
        ([math.inf, 1, 2, 3], {"patience": 2}, None),
        ([0.2, 0.9, 1.0], {"patience": 0, "target": 0.9}, 2),
        ([0.9, 0.2], {"patience": 0, "target": 0.2, "mode": "min"}, 2),
        ([math.nan] * 9, {"patience": 0, "target": 0.2}, None),
    ],
)
def test_by_hand(values, options, step):
    found = ended_at(values, **options)

    assert (found and found[0]) == step


def test_the_reason_has_the_numbers():
    assert ended_at([0.5, 0.75, 0.25], patience=1)[1] == (
        "reward/mean has not become better for 1 values; the best is 0.75, of step 2"
    )
    assert ended_at([0.5], target=0.25)[1] == "reward/mean is 0.5, which reaches the target 0.25"


def test_a_metric_of_evaluations_is_counted_by_evaluations():
    stop = EarlyStop(EarlyStopConfig(metric=PASSED, patience=2))

    answers = []
    for step in range(6):
        stop.step_end(step, {"reward/mean": 1.0})
        answers.append(stop.eval_end(step, {PASSED: 0.5}) is not None)

    assert answers == [False, False, True, True, True, True]


def test_a_state_of_another_metric_is_left_alone():
    first = EarlyStop(EarlyStopConfig(patience=2))
    for step in (1, 2):
        first.step_end(step, {"reward/mean": 1.0})
    other = EarlyStop(EarlyStopConfig(metric="reward/max", patience=2))

    other.load_state_dict(first.state_dict())

    assert other.step_end(3, {"reward/max": 0.0}) is None
    assert other.state_dict()["best_step"] == 3


def test_a_misspelt_metric_is_said_once_with_its_neighbors(caplog):
    stop = EarlyStop(EarlyStopConfig(metric="rewards/mean"))

    for step in (1, 2):
        stop.step_end(step, {"reward/mean": 1.0, "loss/policy": 0.0})
    stop.run_end(RunResult(status="finished", steps=2, seconds=1.0))

    (said,) = caplog.messages
    assert said.startswith("early_stop: rewards/mean is none of the metrics that came now. Near ")
    assert "reward/mean" in said


def test_a_metric_of_evaluations_that_never_take_place_is_said_at_the_end(caplog):
    stop = EarlyStop(EarlyStopConfig(metric=PASSED))

    stop.step_end(1, {"reward/mean": 1.0})
    stop.run_end(RunResult(status="finished", steps=1, seconds=1.0))

    assert caplog.messages == [f"early_stop: {PASSED} has never come, so it ended nothing"]


def test_a_resumed_run_without_a_step_left_is_not_said_to_lack_the_metric(caplog):
    stop = EarlyStop(EarlyStopConfig())

    stop.run_end(RunResult(status="finished", steps=1, seconds=1.0))

    assert caplog.messages == []


@pytest.mark.parametrize("options", [{"patience": 0}, {"patience": 0, "target": 1, "min_delta": 1}])
def test_options_that_change_nothing_are_refused(options):
    with pytest.raises(ValueError, match="patience is 0"):
        EarlyStopConfig(**options)
