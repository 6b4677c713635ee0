"""Executors, filters and shapers in the process of the loop: what they raise or answer wrongly names them."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_core import PluginError
from rlhf_core.contracts import Metric
from rlhf_guard.parts import NamedExecutor, NamedFilter, NamedShaper
from rlhf_testing.conformance.tiny_policy import rollouts
from rlhf_testing.errors import has_code

LABEL = "--option mine (mine 1.0)"
WRONG = has_code("plugin/wrong-answer")


def filter_of(answer):
    return NamedFilter(SimpleNamespace(keep=lambda group, info: answer), LABEL)


def test_a_filter_keeps_with_none_and_drops_with_a_word():
    assert filter_of(None).keep(None, None) is None
    assert filter_of("dull").keep(None, None) == "dull"


@pytest.mark.parametrize("answer", [True, False, 3, "", ["dull"]])
def test_a_filter_that_answers_no_reason_is_refused(answer):
    """A truth value is no None, so a filter that means to keep what is True would drop every group."""
    with pytest.raises(
        PluginError,
        match=r"^--option mine \(mine 1.0\): keep\(\) returned .*; expected None, which keeps the group",
        check=WRONG,
    ):
        filter_of(answer).keep(None, None)


class Broken:
    def keep(self, group):
        """Take too few arguments."""

    def shape(self, batch, info):
        return batch.no_such_column

    def run(self, task):
        """Take too few arguments."""


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: NamedFilter(Broken(), LABEL).keep(None, None),
            r"keep\(\) raised TypeError: [^/]*$",
        ),
        (
            lambda: NamedFilter(object(), LABEL).keep(None, None),
            r"keep\(\) raised AttributeError: [^/]*$",
        ),
        (
            lambda: NamedShaper(Broken(), LABEL).shape(None, None),
            r"Error: .*test_parts.py:\d+ in shape: return batch.no_such_column\)$",
        ),
        (
            lambda: NamedShaper(object(), LABEL).state_dict(),
            r"state_dict\(\) raised AttributeError: [^/]*$",
        ),
        (lambda: play(Broken()), r"run\(\) raised TypeError"),
        (lambda: play(object()), r"run\(\) raised AttributeError"),
    ],
)
def test_what_raises_is_named_with_its_line(call, says):
    """Where the call itself fails there is no line of the component, and no file of ours is shown for one."""
    raised = has_code("plugin/raised")
    with pytest.raises(PluginError, match=rf"^--option mine \(mine 1\.0\): .*{says}", check=raised):
        call()


def play(executor):
    return asyncio.run(NamedExecutor(executor, LABEL).run(None, [0], None))


async def several(task, samples, context):
    yield None


async def coroutine(answer):
    return answer


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (
            lambda task, samples, context: [],
            r"returned \[\] \(list\); expected a coroutine; write it as async def run\(task, samples, context\)$",
        ),
        (several, r"\(async_generator\); expected a coroutine"),
        (
            lambda *_: coroutine(None),
            r"returned None \(NoneType\); expected a list of .*Trajectory",
        ),
        (lambda *_: coroutine([{"a": 1}]), r"expected a list of .*Trajectory"),
    ],
)
def test_an_executor_that_returns_no_trajectories_is_refused(run, says):
    with pytest.raises(PluginError, match=says, check=WRONG):
        play(SimpleNamespace(run=run))


def test_what_an_episode_raises_keeps_its_type():
    async def fails(task, samples, context):
        raise KeyError("door")

    with pytest.raises(KeyError, match="door"):
        play(SimpleNamespace(run=fails))


def shaped(answer):
    batch = rollouts()
    shaper = SimpleNamespace(shape=lambda batch, info: answer(batch))
    return NamedShaper(shaper, LABEL).shape(batch, None)


def test_a_shaper_returns_the_batch_and_metrics():
    batch, metrics = shaped(lambda batch: (batch, {"shaped": Metric(1.0)}))

    assert (len(batch), list(metrics)) == (len(rollouts()), ["shaped"])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            lambda batch: None,
            r"returned None \(NoneType\); expected \(batch, metrics\), with the batch's \d+ rows",
        ),
        (lambda batch: batch, r"expected \(batch, metrics\)"),
        (lambda batch: (batch.select([0]), {}), r"\d+ rows"),
        (lambda batch: (batch, {"x": 1.0}), r"returned 1.0 \(float\); expected a Metric as 'x'"),
    ],
)
def test_a_shaper_that_returns_something_else_is_refused(answer, says):
    with pytest.raises(PluginError, match=says, check=WRONG):
        shaped(answer)


def state_of(state):
    return NamedShaper(SimpleNamespace(state_dict=lambda: state), LABEL).state_dict()


def test_a_shapers_state_is_what_a_checkpoint_gives_back():
    state = {"mean": {"7": 0.5}, "seen": [(1, 2)], "name": None}

    assert state_of(state) == {"mean": {"7": 0.5}, "seen": [[1, 2]], "name": None}


def test_a_shapers_state_is_a_copy():
    state = {"mean": {"7": 0.5}}
    kept = state_of(state)
    state["mean"]["7"] = 1.0

    assert kept == {"mean": {"7": 0.5}}


@pytest.mark.parametrize(
    "state",
    [
        {
            "mean": {7: 0.5}
        },  # JSON gives "7" back, so the mean of prompt 7 would be lost on a resume
        {"means": [{7: 0.5}]},
        {"mean": float("nan")},
        {"mean": np.float32(0.5)},
        {"seen": {1, 2}},
    ],
)
def test_a_state_that_a_checkpoint_would_not_give_back_is_refused(state):
    with pytest.raises(PluginError, match=r"mine 1\.0\): state_dict\(\) returned", check=WRONG):
        state_of(state)
