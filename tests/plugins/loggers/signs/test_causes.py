"""A role that gets no gradient for many steps is named once, with the likely cause."""

import logging

import pytest

from rlhf_plugin_loggers.signs import CAUSES, PATIENCE, ZeroGradients


@pytest.fixture
def messages(caplog):
    """What is said after a number of steps, each with its metrics."""

    def after(steps):
        caplog.set_level(logging.WARNING)
        watch = ZeroGradients(CAUSES, "torch", "runs/one")
        for step, values in enumerate(steps, start=1):
            watch.note(step, values)
        return [record.getMessage() for record in caplog.records]

    return after


def test_a_critic_without_a_gradient_is_named_once(messages):
    step = {"critic/grad_norm": 0.0, "critic/abs_error": 1.0, "policy/grad_norm": 0.3}

    (message,) = messages([step] * (3 * PATIENCE))

    assert message.startswith(f"the critic learns nothing: each of its last {PATIENCE} steps")
    assert "values were not equal to the returns" in message
    assert f"rlhf show runs/one --step {PATIENCE}" in message
    assert "rlhf check torch" in message


def test_a_policy_whose_advantages_are_all_0_is_told_that_this_is_the_cause(messages):
    (message,) = messages([{"policy/grad_norm": 0.0, "advantage/abs_mean": 0.0}] * PATIENCE)

    assert "the policy learns nothing" in message
    assert "Every advantage of these steps was 0" in message
    assert "group/no_signal" in message


def test_one_step_with_advantages_among_them_is_another_cause(messages):
    silent = {"policy/grad_norm": 0.0, "advantage/abs_mean": 0.0}
    lost = {"policy/grad_norm": 0.0, "advantage/abs_mean": 0.5}

    (message,) = messages([silent] * (PATIENCE - 1) + [lost])

    assert "Its advantages were not 0, so the gradient is lost on its way" in message


def test_both_roles_are_named(messages):
    step = {"critic/grad_norm": 0.0, "policy/grad_norm": 0.0}

    assert [message.split()[1] for message in messages([step] * PATIENCE)] == ["policy", "critic"]


def test_a_gradient_in_between_starts_the_count_anew(messages):
    zero, some = {"policy/grad_norm": 0.0}, {"policy/grad_norm": 1e-12}

    assert messages([*[zero] * (PATIENCE - 1), some] * 3) == []


def test_steps_without_an_update_of_the_role_do_not_count(messages):
    """A critic that warms up, and steps whose groups were all filtered."""
    zero, other = {"policy/grad_norm": 0.0}, {"train/empty_batch": 1.0}

    assert messages([zero, other] * (PATIENCE - 1)) == []
    assert len(messages([zero, other] * PATIENCE)) == 1
