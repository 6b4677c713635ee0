"""A run that stopped exploring before its task was solved is told from one that is done, by streams of metrics."""

import logging

import pytest

from rlhf_plugin_loggers.signs import NO_SIGNAL, SPREAD_LEFT, WINDOW, Collapse, Symptoms

RISING = [
    {"reward/mean": 0.05 * n, "reward/std": 0.5, "group/no_signal": 0.1, "policy/entropy": 1.0}
    for n in range(13)
]
FIRST = 47
"""Step at which ``RISING`` and then ``STUCK`` rises by no more than 0.1 of the deviation of 0.5. At step s the window
before lacks 0.05 * (1 + 2 + ... + (52 - s)) / 20 of 0.6, and that is at most 0.05 where (52 - s)(53 - s) <= 40."""
STUCK = {"reward/mean": 0.6, "reward/std": 0.45, "group/no_signal": 0.95, "policy/entropy": 0.04}


def seen(*steps):
    watch = Collapse()
    return [watch.note(values) for values in steps]


def test_a_run_that_stands_still_where_some_prompts_go_badly_is_named():
    found = seen(*RISING, *[STUCK] * 3 * WINDOW)

    first = next(number for number, text in enumerate(found) if text is not None)
    assert first + 1 == FIRST
    assert "of 95 % of the prompts all samples had the same reward" in found[-1]
    assert "stands still (0.6, then 0.6)" in found[-1]
    assert "the entropy is 0.04 nats per token" in found[-1]
    assert "--algo.loss.entropy_target" in found[-1]


@pytest.mark.parametrize(
    "changed",
    [
        {
            "reward/mean": 0.97,
            "reward/std": 0.17,
        },  # solved: 0.97 right of 0 and 1 is a deviation of 0.17
        {"reward/std": 0.5 * SPREAD_LEFT - 0.01},
        {"group/no_signal": NO_SIGNAL - 0.01},
    ],
)
def test_a_run_that_is_done_or_still_has_signal_is_left_alone(changed):
    assert seen(*RISING, *[STUCK | changed] * 3 * WINDOW) == [None] * (13 + 3 * WINDOW)


def test_a_run_that_still_rises_is_left_alone():
    """By 0.004 a step, 0.08 from window to window, of a largest deviation of 0.5."""
    steps = [STUCK | {"reward/mean": 0.1 + 0.004 * n} for n in range(4 * WINDOW)]

    assert set(seen(*[RISING[0]], *steps)) == {None}


def test_steps_without_groups_or_rewards_do_not_count():
    ungrouped = {name: value for name, value in STUCK.items() if name != "group/no_signal"}

    assert set(seen(*RISING, *[ungrouped, {}] * 3 * WINDOW)) == {None}


def test_a_constant_reward_is_another_symptom():
    step = STUCK | {"reward/std": 0.0}

    assert set(seen(*[step] * 3 * WINDOW)) == {None}


def said(caplog, steps):
    caplog.set_level(logging.WARNING)
    watch = Symptoms("runs/one")
    for step, values in enumerate(steps, start=1):
        watch.note(step, values)
    return [record.getMessage() for record in caplog.records]


def test_it_is_said_once_with_the_step(caplog):
    (message,) = said(caplog, [*RISING, *[STUCK] * 4 * WINDOW])

    assert message.startswith(
        f"this run likely learns nothing more: over the last {WINDOW} steps, up to step {FIRST}, of 95 %"
    )
    assert message.endswith(f"rlhf show runs/one --step {FIRST}")


def test_one_trouble_gets_one_line(caplog):
    """A run that never rose is named by what it shows first, and not again."""
    dead = STUCK | {"group/no_signal": 1.0, "policy/entropy": 0.5, "policy/grad_norm": 0.1}

    (message,) = said(caplog, [dead] * 4 * WINDOW)

    assert "no prompt had samples of different rewards" in message
