"""The watch is told by a run's configuration what to look for, and where samples are."""

import logging

from rlhf_core.contracts import RunInfo
from rlhf_plugin_loggers.displays import displays_of
from rlhf_plugin_loggers.signs import PATIENCE, LearningWatch

SILENT = {"progress": "off", "tensorboard": False, "curve": False, "summary": False}
DULL = {"policy/grad_norm": 0.0, "response/truncated": 1.0}


def said(caplog, tmp_path, **sections):
    config = {"log": SILENT, "output": "runs/one", "backend": {"name": "torch"}, **sections}
    run = RunInfo(output=tmp_path, config=config, total_steps=99, start_step=0)
    (watch,) = displays_of(run)
    assert isinstance(watch, LearningWatch)
    caplog.set_level(logging.WARNING)
    for step in range(1, 2 * PATIENCE):
        watch.step_end(step, DULL)
    return [record.getMessage() for record in caplog.records]


def test_a_run_with_rollouts_is_told_of_gradients_and_of_symptoms(caplog, tmp_path):
    gradient, symptom = said(caplog, tmp_path, rollout={"max_new_tokens": 8})

    assert gradient.startswith("the policy learns nothing: each of its last 10 steps")
    assert "every answer was cut off" in symptom
    assert "rlhf show runs/one --step 10" in symptom


def test_a_run_of_examples_is_told_of_gradients_alone(caplog, tmp_path):
    (gradient,) = said(caplog, tmp_path)

    assert "An adapter trains what the loss does not depend on" in gradient
    assert "rlhf show" not in gradient


def test_a_run_that_trains_nothing_is_not_watched(tmp_path):
    run = RunInfo(output=tmp_path, config={"log": SILENT}, total_steps=1, start_step=0)

    assert displays_of(run) == []
