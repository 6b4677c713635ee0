"""Steering a run from outside: the loop waits before each step, takes what is changed there, and ends when asked."""

import asyncio
import json

from rlhf_trainer.loop.run import run


class Steered:
    """Stops before step ``stop_at``, and scales the learning rate before the second step."""

    def __init__(self, stop_at=None):
        self.stop_at = stop_at
        self.stop_reason = None
        self.task = None
        self.before = []

    def began(self, task):
        self.task = task

    async def before_step(self, state):
        await asyncio.sleep(0)
        self.before.append(state.step)
        if state.step == 1:
            state.lr_factors["policy"] = 0.5
        if len(self.before) == self.stop_at:
            self.stop_reason = "somebody"


def steered(small_run, control, *changes):
    with small_run.configured(*changes) as (resolved, plugins):
        return run(resolved, plugins, control)


def test_the_loop_asks_before_each_step(small_run):
    control = Steered()

    result = steered(small_run, control)

    assert control.before == [0, 1, 2]
    assert isinstance(control.task, asyncio.Task)
    assert (result.status, result.steps) == ("finished", 3)


def test_a_wish_to_stop_ends_the_run_with_a_checkpoint(small_run):
    result = steered(small_run, Steered(stop_at=3), {"checkpoint": {"every": 0}})

    assert (result.status, result.steps) == ("interrupted", 2)
    assert result.message.startswith("stopped by somebody")
    assert small_run.checkpoints() == [2]


def test_what_is_saved_already_is_not_saved_again(small_run):
    steered(small_run, Steered(stop_at=3), {"checkpoint": {"every": 2}})

    assert small_run.checkpoints() == [2]
    saves = [event for event in small_run.events if "save" in str(event)]
    assert len(saves) == 2, "the role's and the checkpoint's"


def test_a_run_that_saves_nothing_at_its_end_is_exported(small_run):
    at_end = {"checkpoint": {"every": 0, "at_end": False}}

    assert steered(small_run, Steered(), at_end).status == "finished"
    assert small_run.checkpoints() == []
    assert (small_run.folder / "run" / "model").is_dir()
    assert len((small_run.folder / "run" / "metrics.jsonl").read_text().splitlines()) >= 3


def test_a_stop_saves_whatever_the_end_does(small_run):
    steered(small_run, Steered(stop_at=3), {"checkpoint": {"every": 0, "at_end": False}})

    assert small_run.checkpoints() == [2]


def test_a_run_that_is_stopped_before_its_first_step_saves_nothing(small_run):
    result = steered(small_run, Steered(stop_at=1))

    assert (result.status, result.steps) == ("interrupted", 0)
    assert small_run.checkpoints() == []


def test_a_factor_that_was_set_is_recorded_and_saved(small_run):
    steered(small_run, Steered(), {"checkpoint": {"every": 1}})

    steps = [line["metrics"] for line in small_run.lines() if "metrics" in line]
    assert [step.get("policy/lr_factor") for step in steps] == [None, 0.5, 0.5]
    newest = max((small_run.folder / "run/checkpoints").glob("step-*"))
    assert json.loads((newest / "state.json").read_text())["lr_factors"] == {"policy": 0.5}
