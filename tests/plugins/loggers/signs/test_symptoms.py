"""A run that cannot learn is told so once, by planted streams of metrics; one that learns is left alone."""

import logging
import math

import pytest

from rlhf_plugin_loggers.signs import (
    ENTROPY_GONE,
    KL_EXPLODED,
    KL_PATIENCE,
    PATIENCE,
    SYMPTOMS,
    Symptoms,
    symptoms_of,
)

HEALTHY = {
    "reward/mean": 0.5,
    "reward/std": 0.3,
    "group/no_signal": 0.2,
    "policy/entropy": 0.8,
    "policy/grad_norm": 0.3,
    "response/truncated": 0.1,
    "response/length_mean": 12.0,
    "kl/ref": 0.02,
}
PLANTED = {
    "no_signal": (
        {"group/no_signal": 1.0},
        "no prompt had samples of different rewards",
        "--reward",
    ),
    "entropy_gone": (
        {"policy/entropy": ENTROPY_GONE / 2},
        "the entropy is below",
        "entropy_target",
    ),
    "truncated": ({"response/truncated": 1.0}, "every answer was cut off", "max_new_tokens"),
    "empty": (
        {"response/length_mean": 1.0},
        "every answer ended with its first token",
        "--data.template",
    ),
    "kl_exploded": (
        {"kl/ref": KL_EXPLODED + 1},
        "the KL to the reference is above",
        "--algo.kl.coef",
    ),
}


@pytest.fixture
def messages(caplog):
    """What is said after a number of steps, each with its metrics."""

    def after(steps):
        caplog.set_level(logging.WARNING)
        watch = Symptoms("runs/one")
        for step, values in enumerate(steps, start=1):
            watch.note(step, values)
        return [record.getMessage() for record in caplog.records]

    return after


def test_every_symptom_is_planted_below():
    assert PLANTED.keys() == SYMPTOMS.keys()


def test_answers_of_one_token_are_neither_empty_nor_cut_off():
    assert SYMPTOMS.keys() - symptoms_of(1).keys() == {"truncated", "empty"}
    assert symptoms_of(2) == SYMPTOMS


def test_a_healthy_run_is_left_alone(messages):
    assert messages([HEALTHY] * (3 * PATIENCE)) == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_symptom_is_named_once_with_cause_and_option(messages, name):
    planted, said, option = PLANTED[name]

    (message,) = messages([HEALTHY | planted] * (3 * PATIENCE))

    patience = SYMPTOMS[name].patience
    assert f"in each of the last {patience} steps, up to step {patience}, {said}" in message
    assert option in message
    assert f"rlhf show runs/one --step {patience}" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", PLANTED)
def test_a_step_without_it_starts_the_count_anew(messages, name):
    sick = HEALTHY | PLANTED[name][0]
    patience = SYMPTOMS[name].patience

    assert messages(([sick] * (patience - 1) + [HEALTHY]) * 3) == []


@pytest.mark.parametrize("name", [name for name in PLANTED if name != "kl_exploded"])
def test_a_run_whose_reward_has_risen_is_left_alone(messages, name):
    """It may have solved its task, which looks the same."""
    sick = HEALTHY | PLANTED[name][0]
    steps = [HEALTHY | {"reward/mean": 0.1 * n} for n in range(8)]

    assert messages([*steps, *[sick | {"reward/mean": 0.9}] * (3 * PATIENCE)]) == []


def test_an_exploded_kl_is_named_soon_and_also_while_the_reward_rises(messages):
    steps = [HEALTHY | {"kl/ref": 20.0, "reward/mean": 0.2 * n} for n in range(KL_PATIENCE)]

    assert len(messages(steps)) == 1


def test_a_constant_reward_is_no_signal_also_without_groups(messages):
    step = {"reward/mean": 0.0, "reward/std": 0.0, "policy/grad_norm": 0.1}

    (message,) = messages([step] * PATIENCE)

    assert "no prompt had samples of different rewards" in message


def test_a_gradient_of_0_is_left_to_its_own_warning(messages):
    step = HEALTHY | {"group/no_signal": 1.0, "policy/grad_norm": 0.0}

    assert messages([step] * (2 * PATIENCE)) == []


def test_steps_without_metrics_or_with_such_as_are_not_finite_are_no_error(messages):
    assert messages([{}, {"reward/mean": math.nan, "kl/ref": math.nan}] * PATIENCE) == []
