"""The best by one metric, mode and data is not compared with that of another, and none is lost."""

import math

import pytest

from rlhf_config.common import CheckpointConfig
from rlhf_trainer.loop.state import RunState, evaluated_on, note_best

A, B = "eval/a", "eval/b"


def noted(state, step, data="d", mode="max", metric=A, headline=None, **values):
    state.step = step
    options = CheckpointConfig(best_metric=metric, best_mode=mode)
    named = {f"eval/{name}": value for name, value in values.items()}
    return note_best(state, named, options, data, headline)


def kept(state):
    return [best.step for best in state.bests]


def test_only_a_better_value_is_the_best():
    state = RunState()

    assert [noted(state, step, a=value) for step, value in enumerate([1, 2, 2, 1], start=1)] == [
        *(True, True, False, False)
    ]
    assert kept(state) == [2]


@pytest.mark.parametrize(
    ("name", "values", "best"),
    [
        ("reward", (0.1, 0.4, 0.2), [True, True, False]),
        ("nll", (3.0, 1.0, 2.0), [True, True, False]),
        ("loss", (0.6, 0.7, 0.5), [True, False, True]),
    ],
)
def test_auto_is_the_headline_of_the_run_and_of_losses_the_smallest(name, values, best):
    state, auto = RunState(), {"metric": "auto", "mode": "auto", "headline": f"eval/{name}"}

    assert [noted(state, step, **auto, **{name: v}) for step, v in enumerate(values, 1)] == best
    assert kept(state) == [step for step, is_best in enumerate(best, 1) if is_best][-1:]


@pytest.mark.parametrize("options", [{"metric": None, "headline": A}, {"metric": "auto"}])
def test_without_a_metric_or_an_evaluation_there_is_no_best(options):
    assert not noted(RunState(), 1, mode="auto", a=1, **options)


@pytest.mark.parametrize(
    ("metric", "mode", "better"),
    [
        ("eval/nll", "auto", 1.0),
        ("eval/perplexity", "auto", 1.0),
        ("eval/nll", "max", 2.0),
        ("eval/accuracy", "auto", 2.0),
        ("eval/accuracy", "min", 1.0),
    ],
)
def test_a_mode_that_is_named_wins_over_the_metric_s_own(metric, mode, better):
    name, state = metric.rpartition("/")[2], RunState()

    for step, value in enumerate((1.0, 2.0, 1.0, 2.0), start=1):
        noted(state, step, metric=metric, mode=mode, **{name: value})

    assert [one.value for one in state.bests] == [better]


@pytest.mark.parametrize(
    "other", [{"metric": B, "b": 0.5}, {"mode": "min", "a": 9}, {"data": "e", "a": 0}]
)
def test_what_was_best_otherwise_is_not_compared_and_stays(other):
    state = RunState()
    noted(state, 1, a=5)

    assert noted(state, 2, **other)
    assert kept(state) == [1, 2]


def test_the_first_metric_goes_on_from_its_own_best():
    state = RunState()
    noted(state, 1, a=5)
    noted(state, 2, metric=B, b=1)

    assert not noted(state, 3, a=4)
    assert noted(state, 4, a=6)
    assert kept(state) == [2, 4]


@pytest.mark.parametrize("values", [{}, {"a": math.nan}])
def test_no_number_is_no_best(values, caplog):
    state = RunState()

    assert not noted(state, 1, **values)
    assert "eval/a was not evaluated at step 1" in caplog.text
    assert noted(state, 2, a=-1)


def test_a_checkpoint_of_before_does_not_change():
    state = RunState()
    noted(state, 1, a=1)
    before = state.bests

    noted(state, 2, a=2)

    assert [best.step for best in before] == [1]


def test_other_rows_or_rewards_are_other_data_and_another_schedule_is_not(resolved):
    def of(*words, files=None):
        return evaluated_on(resolved("--eval.fraction", "0.5", *words), files or {})

    assert of() == of("--eval.every", "7") == of(files={"data.train rows": "x"})
    assert len({of(), of("--eval.max_samples", "2"), of(files={"eval.data rows": "x"})}) == 3
