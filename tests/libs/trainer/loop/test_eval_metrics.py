"""Metrics of plugins in evaluations: what they get, what is recorded, and what is said of one that fails."""

import math

import numpy as np
import pytest

from rlhf_core import Component, PluginError
from rlhf_core.contracts import EvalEpisodes, Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_testing.errors import has_code
from rlhf_trainer.loop.evaluation import NamedMetric, episodes_of, measured

EVALUATED = {"eval": {"fraction": 0.25, "every": 2}}


def episodes(**changes):
    given = {
        "set_name": "held_out",
        "temperature": 0.5,
        "prompt": np.array([0]),
        "reward": np.array([1.0]),
        "passed": np.array([True]),
        "num_actions": np.array([1]),
        "responses": ("4",),
    }
    return EvalEpisodes(**given | changes)


def named(metric):
    return [NamedMetric(metric=metric, label="--eval.metrics mine (my-plugin 3.1)")]


def row(prompt, sample, tokens, reward, segment=0):
    mask = np.array([False, *[token > 0 for token in tokens]])
    actions = int(mask.sum())
    edges = np.flatnonzero(np.diff(mask.astype(int), append=0)).reshape(-1, 2) + 1
    return Trajectory(
        uid=Uid(-1, prompt, sample, segment),
        token_ids=np.array([9, *map(abs, tokens)], np.int32),
        action_mask=mask,
        rollout_logprobs=np.zeros(actions, np.float32),
        weight_version=np.zeros(actions, np.int32),
        turns=tuple(Turn(start=int(start), end=int(end)) for start, end in edges),
        reward=reward,
    )


def test_episodes_have_what_the_policy_wrote_and_segments_count_once():
    """A negative token is the environment's; the second episode has two segments."""
    rows = [
        row(0, 0, (1, -7, 2), 0.25),
        row(0, 1, (3,), 0.5, segment=0),
        row(0, 1, (4, 5), 1.0, segment=1),
        row(3, 0, (6,), 0.0),
    ]

    found = episodes_of(
        TrajectoryColumns.from_trajectories(rows),
        lambda tokens: "".join(map(str, tokens)),
        set_name="held_out",
        temperature=0.5,
        pass_threshold=1.0,
    )

    assert found.responses == ("12", "345", "6")
    assert found.prompt.tolist() == [0, 0, 1]
    assert found.reward.tolist() == [0.25, 1.0, 0.0]
    assert found.passed.tolist() == [False, True, False]
    assert found.num_actions.tolist() == [2, 3, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "much"])
def test_what_is_no_finite_number_names_metric_set_and_temperature(value):
    with pytest.raises(PluginError) as caught:
        measured(named(lambda episodes: {"share": value}), episodes(), {})

    assert str(caught.value).startswith(
        "--eval.metrics mine (my-plugin 3.1), set 'held_out' at temperature 0.5: share is "
    )


def test_a_metric_that_raises_is_named():
    with pytest.raises(
        PluginError,
        match=r"mine \(my-plugin 3\.1\).*it raised ZeroDivisionError",
        check=has_code("plugin/raised"),
    ):
        measured(named(lambda episodes: {"share": 1 / 0}), episodes(), {})


def test_what_is_no_numbers_by_name_is_refused():
    with pytest.raises(
        PluginError,
        match=r"it returned 0.5 \(float\); expected numbers by name",
        check=has_code("metric/wrong-answer"),
    ):
        measured(named(lambda episodes: 0.5), episodes(), {})


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(
        PluginError,
        match="'reward' is the name of another metric already",
        check=has_code("metric/name-taken"),
    ):
        measured(named(lambda episodes: {"reward": 1.0}), episodes(), {"reward": 0.0})
    with pytest.raises(
        PluginError,
        match="a name without spaces, got 'my share'",
        check=has_code("metric/malformed-name"),
    ):
        measured(named(lambda episodes: {"my share": 1.0}), episodes(), {})


def test_a_run_records_them_by_set_and_temperature_and_can_keep_the_best_by_them(small_run):
    def count(episodes):
        return {"episodes": len(episodes.responses), "set": len(episodes.set_name)}

    small_run.with_component("rlhf_eval_metrics", Component(name="counts", factory=lambda _: count))

    chosen = {"eval": {"metrics": ["counts"]}}
    small_run(EVALUATED, chosen, {"checkpoint": {"best_metric": "eval/rows/T0/episodes"}})

    found = [line["eval"] for line in small_run.lines() if "eval" in line]
    assert len(found) == 3
    assert {values["eval/rows/T0/set"] for values in found} == {4.0}
    assert all(values["eval/rows/T0/episodes"] > 0 for values in found)
