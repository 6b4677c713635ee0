"""Callbacks hear the events that they name; one that raises is switched off, and one that fits nothing is refused."""

import logging

import pytest

from rlhf.callbacks import StepRecorder, add_callback
from rlhf_core import ConfigError, plugins
from rlhf_core.contracts import EndRun, Observer
from rlhf_testing.errors import has_code
from rlhf_trainer.loop.listeners import observe


@pytest.fixture
def loaded():
    return plugins.empty()


def test_a_function_hears_steps_and_an_object_what_it_has_methods_for(loaded):
    heard = []

    class Mine:
        def eval_end(self, metrics):
            heard.append(("eval", metrics))

        def run_end(self, **everything):
            heard.append(("end", sorted(everything)))

    add_callback(loaded, lambda step: heard.append(step), 0)
    add_callback(loaded, Mine(), 1)

    observe(loaded, "rlhf_step_end", step=1, metrics={})
    observe(loaded, "rlhf_eval_end", step=1, metrics={"a": 1.0})
    observe(loaded, "rlhf_run_end", result=None)

    assert heard == [1, ("eval", {"a": 1.0}), ("end", ["result"])]


def test_one_that_raises_is_named_and_switched_off_and_others_go_on(loaded, caplog):
    heard = []

    def broken(step, metrics):
        raise ValueError("mine")

    add_callback(loaded, broken, 0)
    add_callback(loaded, lambda step: heard.append(step), 1)
    with caplog.at_level(logging.ERROR):
        observe(loaded, "rlhf_step_end", step=1, metrics={})
        observe(loaded, "rlhf_step_end", step=2, metrics={})

    assert heard == [1, 2]
    (record,) = caplog.records
    assert "python:broken (callbacks[0]) failed in rlhf_step_end" in record.getMessage()


def positional(step, /):
    """Takes its argument by position."""


@pytest.mark.parametrize(
    ("callback", "said", "code"),
    [
        (
            3,
            r"callbacks\[0\]: got int; expected a function of step and metrics",
            "observer/wrong-kind",
        ),
        (
            lambda loss: None,
            r"callbacks\[0\]: given \(step_end\) takes 'loss'; expected some of",
            "observer/unknown-arguments",
        ),
        (
            positional,
            "takes 'step'; expected some of step, metrics, which are passed by name",
            "observer/unknown-arguments",
        ),
    ],
)
def test_a_callback_that_fits_nothing_is_refused(loaded, callback, said, code):
    with pytest.raises(ConfigError, match=said, check=has_code(code)):
        add_callback(loaded, callback, 0)


def test_the_recorder_gives_each_step_once_with_what_belongs_to_it(loaded):
    recorder = StepRecorder()
    loaded.manager.register(recorder)
    assert recorder.take() is None

    observe(loaded, "rlhf_rollout_end", step=1, samples=["s"], metrics={})
    observe(loaded, "rlhf_step_end", step=1, metrics={"a": 1.0})
    observe(loaded, "rlhf_eval_end", step=1, metrics={"eval/x": 2.0})
    step = recorder.take()

    assert (step.number, step.metrics, step.samples) == (1, {"a": 1.0}, ("s",))
    assert step.evaluation == {"eval/x": 2.0}
    assert recorder.take() is None


def test_an_observer_is_no_callback_since_its_state_would_be_lost(loaded):
    with pytest.raises(ConfigError, match="observer", check=has_code("observer/with-state")):
        add_callback(loaded, Observer(), 0)


def test_a_callback_that_wants_to_end_the_run_is_told_how(loaded, caplog):
    add_callback(loaded, lambda step: EndRun(reason="enough"), 0)

    observe(loaded, "rlhf_step_end", step=1, metrics={})

    assert "a callback ends no run" in caplog.text
