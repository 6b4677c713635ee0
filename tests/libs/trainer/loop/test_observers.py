"""Observers hear a run in its order, may end it as if a step were the last, and their state is in each checkpoint."""

import json
import math

import numpy as np
import pytest

from rlhf_core import Component, Config, PluginError, ResumeError
from rlhf_core.contracts import EndRun, Observer
from rlhf_testing.errors import has_code
from rlhf_trainer.loop.listeners import Observers, WatchingObserver

EVALUATED = {"eval": {"fraction": 0.25, "every": 2}}
WATCHED = {"observers": {"use": ["watcher"]}}
LONGER = {"train": {"steps": 6}}
RESUMED = {"resume": {"checkpoint": "auto"}}
PAST_END = {"resume": {"checkpoint": "auto", "past_end": True}}


class Watcher(Observer):
    """Writes down what it hears, counts steps, and does what a test wants at an event."""

    def __init__(self, actions=None, answers=None):
        self.observed = []
        self.steps = 0
        self._actions = actions or {}
        self._answers = answers or {}

    def _note(self, event, number=None):
        self.observed.append((event, number))
        self._actions.get(event, lambda: None)()
        return self._answers.get((event, number))

    def run_start(self, run):
        self._note("run_start", run.start_step)

    def rollout_end(self, step, samples, metrics):
        return self._note("rollout_end", step)

    def step_end(self, step, metrics):
        self.metrics = metrics
        self.steps += 1
        return self._note("step_end", step)

    def eval_end(self, step, metrics):
        return self._note("eval_end", step)

    def checkpoint_saved(self, step, path):
        self._note("checkpoint_saved", step)

    def run_end(self, result):
        self._note("run_end", result.status)

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self._note("load_state_dict", state["steps"])
        self.steps = state["steps"]


def watched(small_run, watcher, name="watcher", **described):
    component = Component(name=name, factory=lambda config: watcher, **described)
    small_run.with_component("rlhf_observers", component)
    return watcher


def ends_at(step, event="step_end", reason="enough\nof it"):
    return {(event, step): EndRun(reason=reason)}


def alone(observer, label="mine (my-plugin 3.1)"):
    return Observers([WatchingObserver(name="my:mine", label=label, observer=observer)])


def end_lines(small_run):
    return [line for line in small_run.lines() if "end" in line]


def test_an_observer_hears_the_run_in_its_order(small_run):
    watcher = watched(small_run, Watcher())

    result = small_run(EVALUATED, WATCHED, {"checkpoint": {"every": 2}})

    steps = [
        *[("rollout_end", 1), ("step_end", 1)],
        *[("rollout_end", 2), ("step_end", 2), ("eval_end", 2), ("checkpoint_saved", 2)],
        *[("rollout_end", 3), ("step_end", 3), ("eval_end", 3), ("checkpoint_saved", 3)],
    ]
    assert watcher.observed == [
        ("run_start", 0),
        ("eval_end", 0),
        *steps,
        ("run_end", "finished"),
    ]
    assert result.message == ""
    assert watcher.metrics["reward/mean"] > 0.0
    with pytest.raises(TypeError, match="does not support item assignment"):
        watcher.metrics["reward/mean"] = 0.0


def test_tokens_that_the_learner_kept_are_heard_and_not_among_the_records(small_run):
    class Hears(Watcher):
        def rollout_end(self, step, samples, metrics):
            self.samples = samples

    watcher = watched(small_run, Hears())

    def keep_columns(runtime):
        runtime.learner.columns = lambda batch: {
            "advantages": np.arange(batch.num_actions.sum(), dtype=np.float32)
        }

    small_run(WATCHED, prepare=keep_columns)

    assert watcher.samples
    for sample in watcher.samples:
        tokens = sample.tokens
        assert "".join(tokens.texts).replace("<eos>", "") == sample.prompt + sample.response
        assert len(tokens.columns["advantages"]) == tokens.action_mask.sum()
    assert watcher.samples[0].tokens.columns["advantages"].tolist()[:2] == [0.0, 1.0]
    assert not any("tokens" in line for line in small_run.lines("samples.jsonl"))


def test_nobody_hears_tokens_that_were_not_kept(small_run):
    class Hears(Watcher):
        def rollout_end(self, step, samples, metrics):
            self.samples = samples

    watcher = watched(small_run, Hears())

    small_run(WATCHED)

    assert [sample.tokens for sample in watcher.samples] == [None] * len(watcher.samples)


def test_a_step_at_which_an_observer_ends_the_run_is_its_last_one(small_run):
    """It is evaluated, saved and exported as the last step of any run."""
    watched(small_run, Watcher(answers=ends_at(3)))

    result = small_run(EVALUATED, WATCHED, LONGER)

    assert (result.status, result.steps) == ("finished", 3)
    assert result.message.startswith("ended by watcher (")
    assert result.message.endswith("): enough of it")
    assert small_run.checkpoints() == [2, 3]
    assert result.model is not None
    steps = ["step 3", "evaluated 3", "save", "saved 3", "export", "runtime closes"]
    assert [event for event in small_run.events[-12:] if event in steps] == steps
    assert end_lines(small_run) == [
        {"step": 3, "time_s": small_run.lines()[-2]["time_s"], "end": result.message}
    ]


def test_an_evaluation_may_end_the_run_too(small_run):
    watched(small_run, Watcher(answers=ends_at(4, "eval_end")))

    result = small_run(EVALUATED, WATCHED, LONGER)

    assert (result.status, result.steps) == ("finished", 4)
    assert small_run.checkpoints() == [2, 4]
    assert small_run.events.count("evaluated 4") == 1


def test_the_evaluation_before_the_first_step_may_end_the_run(small_run):
    watched(small_run, Watcher(answers=ends_at(0, "eval_end")))

    result = small_run(EVALUATED, WATCHED)

    assert (result.status, result.steps) == ("finished", 0)
    assert result.model is not None


def test_a_wish_at_the_last_step_changes_nothing(small_run):
    watched(small_run, Watcher(answers=ends_at(3) | ends_at(3, "eval_end")))

    result = small_run(EVALUATED, WATCHED)

    assert (result.message, end_lines(small_run)) == ("", [])


def test_the_first_that_asks_is_recorded(small_run):
    watched(small_run, Watcher(answers=ends_at(1, reason="first")))
    watched(small_run, Watcher(answers=ends_at(1, reason="second")), "other")

    result = small_run({"observers": {"use": ["watcher", "other"]}})

    assert result.message.endswith(": first")


def test_a_resumed_run_that_was_ended_stays_ended(small_run, caplog):
    watched(small_run, Watcher(answers=ends_at(2)))
    ended = small_run(WATCHED, LONGER)

    again = small_run(WATCHED, LONGER, RESUMED)

    assert (again.status, again.steps, again.message) == ("finished", 2, ended.message)
    assert len(end_lines(small_run)) == 1
    (said,) = [text for text in caplog.messages if "--resume.past_end" in text]
    assert said.startswith(f"the run was {ended.message}. ")


def test_past_its_end_the_run_is_that_without_an_observer_and_who_ended_it_begins_anew(small_run):
    other = watched(small_run, Watcher(), "other")
    both = {"observers": {"use": ["watcher", "other"]}}
    watcher = watched(small_run, Watcher(answers=ends_at(2)))
    small_run(both, LONGER)

    result = small_run(both, LONGER, PAST_END)

    assert (result.status, result.steps, result.message) == ("finished", 6, "")
    loaded = [("load_state_dict", 2)]
    assert [event for event in watcher.observed if event[0] == "load_state_dict"] == []
    assert [event for event in other.observed if event[0] == "load_state_dict"] == loaded
    small_run(LONGER, output="whole")
    metrics = [line["metrics"] for line in small_run.lines() if "metrics" in line]
    assert metrics == [line["metrics"] for line in small_run.lines(output="whole")]


def test_the_state_comes_back_before_the_run_starts(small_run):
    watcher = watched(small_run, Watcher())
    small_run(WATCHED, {"train": {"steps": 2}})
    first = len(watcher.observed)

    small_run(WATCHED, RESUMED)

    assert watcher.observed[first : first + 2] == [("load_state_dict", 2), ("run_start", 2)]


def test_observers_may_join_and_leave_a_resumed_run(small_run):
    watched(small_run, Watcher(), "leaves")
    watcher = watched(small_run, Watcher())
    small_run({"observers": {"use": ["leaves"]}}, {"train": {"steps": 2}})

    small_run(WATCHED, RESUMED)

    assert watcher.observed[0] == ("run_start", 2)


def test_a_state_that_cannot_be_taken_back_refuses_the_resume(small_run):
    watched(small_run, Watcher({"load_state_dict": lambda: [][1]}))
    small_run(WATCHED, {"train": {"steps": 2}})

    with pytest.raises(
        ResumeError,
        match=r"the observer watcher \(.*\) cannot take its state back",
        check=has_code("resume/state-refused"),
    ):
        small_run(WATCHED, RESUMED)


@pytest.mark.parametrize("event", ["run_start", "rollout_end", "step_end", "eval_end", "run_end"])
def test_one_that_raises_is_named_and_switched_off_and_the_others_hear_on(small_run, event, caplog):
    watcher = watched(small_run, Watcher({event: lambda: 1 / 0}))
    other = watched(small_run, Watcher(), "other")

    result = small_run(EVALUATED, {"observers": {"use": ["watcher", "other"]}})

    assert result.status == "finished"
    assert other.observed[-1] == ("run_end", "finished")
    assert watcher.observed[-1][0] == event
    (record,) = [record for record in caplog.records if "observer watcher (" in record.message]
    assert f"failed in {event} and is switched off" in record.message
    assert "ZeroDivisionError" in record.exc_text


@pytest.mark.parametrize(
    ("event", "answer"),
    [
        ("step_end", True),
        ("eval_end", "stop"),
        ("eval_end", EndRun(reason=" ")),
        ("rollout_end", EndRun(reason="enough")),
    ],
)
def test_another_answer_is_a_failure(event, answer, caplog):
    observers = alone(Watcher(answers={(event, 1): answer}))
    more = {"samples": ()} if event == "rollout_end" else {}

    observers.tell(event, step=1, metrics={}, **more)

    assert observers.ending is None
    assert f"observer mine (my-plugin 3.1) failed in {event}" in caplog.text
    assert "got " in caplog.text


@pytest.mark.parametrize("state", [{"best": math.nan}, {"best": object()}, {1, 2}, {3: 1.0}])
def test_a_state_that_is_no_json_switches_it_off_and_nothing_is_lost(state, caplog):
    watcher = Watcher()
    watcher.state_dict = lambda: state
    observers = alone(watcher)

    assert observers.state() == {}

    assert "failed in state_dict" in caplog.text
    observers.tell("step_end", step=1, metrics={})
    assert watcher.observed == []


def test_a_state_is_as_json_gives_it_back():
    watcher = Watcher()
    watcher.state_dict = lambda: {"pairs": [(1, 2)]}

    assert alone(watcher).state() == {"my:mine": {"pairs": [[1, 2]]}}


def test_what_is_no_observer_is_refused_before_anything_is_built(small_run):
    small_run.with_component("rlhf_observers", Component(name="thing", factory=lambda _: object()))

    with pytest.raises(
        PluginError,
        match=r"--observers\.use thing .*got object; derive it from",
        check=has_code("observer/wrong-kind"),
    ):
        small_run({"observers": {"use": ["thing"]}})

    assert small_run.events == []


class LimitConfig(Config):
    """Options of ``Limit``."""

    steps: int = 2


class Limit(Observer):
    """Ends a run after some steps."""

    def __init__(self, config: LimitConfig):
        self.config = config

    def step_end(self, step, metrics):
        return EndRun(reason="limit") if step >= self.config.steps else None


def test_an_observer_has_options_beside_the_list_and_is_recorded_in_the_checkpoint(small_run):
    small_run.with_component(
        "rlhf_observers", Component(name="limit", factory=Limit, config=LimitConfig)
    )

    result = small_run({"observers": {"use": ["limit"], "limit": {"steps": 1}}})

    state = small_run.folder / "run" / "checkpoints" / "step-00000001" / "state.json"
    saved = json.loads(state.read_text())
    assert saved["end"] == result.message
    assert saved["ended_by"].endswith(":limit")
