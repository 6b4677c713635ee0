"""A role whose gradient is 0 step after step is named; the causes are the caller's."""

import logging

from rlhf_plugin_loggers.signs import (
    PATIENCE,
    ZeroGradientCauses,
    ZeroGradients,
)

ZERO = {"pupil/grad_norm": 0.0}


def said(caplog, watch, steps):
    caplog.set_level(logging.WARNING)
    for step, values in enumerate(steps, start=1):
        watch.note(step, values)
    return [record.getMessage() for record in caplog.records]


def test_a_gradient_of_0_that_is_never_right_has_one_cause(caplog):
    watch = ZeroGradients({"pupil": ZeroGradientCauses(wrong="It sleeps")}, "torch")

    (message,) = said(caplog, watch, [ZERO] * (2 * PATIENCE))

    assert message == (
        f"the pupil learns nothing: each of its last {PATIENCE} steps, up to step {PATIENCE}, had a gradient of norm "
        "0. It sleeps. Ask the backend whether it trains every parameter with: rlhf check torch"
    )


def test_the_cause_depends_on_the_error_of_all_steps(caplog):
    causes = ZeroGradientCauses(error="pupil/error", right="It knows all", wrong="It sleeps")
    knowing, sleeping = ZERO | {"pupil/error": 0.0}, ZERO | {"pupil/error": 0.1}

    (right,) = said(caplog, ZeroGradients({"pupil": causes}, "torch"), [knowing] * PATIENCE)
    caplog.clear()
    steps = [sleeping, *[knowing] * (PATIENCE - 1)]
    (wrong,) = said(caplog, ZeroGradients({"pupil": causes}, "torch"), steps)

    assert "It knows all." in right
    assert "It sleeps." in wrong


def test_roles_that_are_not_watched_are_not_named(caplog):
    watch = ZeroGradients({"pupil": ZeroGradientCauses(wrong="It sleeps")}, "torch")

    assert said(caplog, watch, [{"teacher/grad_norm": 0.0}] * PATIENCE) == []


def test_runs_with_rollouts_name_the_place_of_the_samples(caplog):
    watch = ZeroGradients({"pupil": ZeroGradientCauses(wrong="It sleeps")}, "torch", "runs/one")

    (message,) = said(caplog, watch, [ZERO] * PATIENCE)

    assert f"See the samples with: rlhf show runs/one --step {PATIENCE}." in message


def test_in_runs_of_examples_each_role_with_a_gradient_is_watched(caplog):
    watch = ZeroGradients({}, "torch", others=ZeroGradientCauses(wrong="It sleeps"))

    (message,) = said(caplog, watch, [ZERO] * (2 * PATIENCE))

    assert message.startswith("the pupil learns nothing")
