"""A run on tasks that its environments make: trained by shares, evaluated by environment, and resumed to the same."""

import json
from itertools import count

import pytest

from rlhf_core import Component
from rlhf_core.contracts import Observation, StepResult

MADE = {
    "data": {"train": []},
    "env": {"use": ["riddles=0.75", "stream"]},
    "rollout": {"executor": "multi_turn", "max_length": 48, "batch_size": 4, "max_new_tokens": 4},
    "reward": {"use": [], "shapers": []},
    "eval": {"every": 2},
    "train": {"steps": 4},
    "checkpoint": {"every": 1},
}


class Recorded:
    """One turn; notes which task was played under which uid, and that the maker of tasks was closed."""

    def __init__(self, options, notes):
        self.notes = notes

    async def reset(self, task, seed):
        self.notes.append((tuple(task.uid), task.environment, task.row.get("key"), seed))
        return Observation() if task.prompt_ids else Observation(text="stream:")

    async def step(self, action):
        return StepResult(reward=float(sum(action.token_ids)), done=True)

    async def close(self):
        self.notes.append("closed")


class Riddles(Recorded):
    def tasks(self, split):
        if split == "train":
            return [{"key": f"r{n}", "prompt": f"riddle {n}:"} for n in range(9)]
        return {"eval": [{"key": "e0", "prompt": "?"}]}[split]


class Stream(Recorded):
    def tasks(self, split):
        if split != "train":
            raise KeyError(split)
        return ({"key": f"s{n}"} for n in count())


@pytest.fixture
def notes(small_run):
    found = []
    for name, made in (("riddles", Riddles), ("stream", Stream)):
        small_run.with_component(
            "rlhf_environments",
            Component(name=name, factory=lambda options, made=made: made(options, found)),
        )
    return found


def played(notes):
    return sorted({note for note in notes if note != "closed" and note[0][0] >= 0})


def test_environments_play_their_own_tasks_in_their_shares(small_run, notes):
    result = small_run(MADE)

    assert result.status == "finished"
    train = played(notes)
    prompts = {(uid[:2], name, key) for uid, name, key, _ in train}
    assert sorted(key for _, name, key in prompts if name == "stream") == ["s0", "s1", "s2", "s3"]
    riddles = [key for _, name, key in prompts if name == "riddles"]
    assert len(riddles) == 12, "three of each step's four"
    assert set(riddles) == {f"r{n}" for n in range(9)}, "an epoch repeats none"
    made = len([note for note in notes if note != "closed"])
    assert notes.count("closed") == made + 2, "each episode's, and the two that made the tasks"


def test_metrics_are_recorded_by_environment_and_evaluation_is_by_environment(small_run, notes):
    small_run(MADE)

    trained = [line["metrics"] for line in small_run.lines() if "metrics" in line]
    assert len(trained) == 4
    for line in trained:
        rewards = line["rollout/riddles/reward"], line["rollout/stream/reward"]
        assert line["reward/mean"] == pytest.approx(0.75 * rewards[0] + 0.25 * rewards[1], rel=1e-5)
        assert line["rollout/stream/turns"] == 1.0
        assert rewards[0] != rewards[1]
    evaluated = {name for line in small_run.lines() for name in line.get("eval", ())}
    assert evaluated
    assert all(name.startswith("eval/riddles/T0/") for name in evaluated)


def test_a_resumed_run_plays_the_tasks_and_seeds_that_it_would_have_played(small_run, notes):
    small_run(MADE, output="whole")
    whole = played(notes)
    notes.clear()
    small_run.diary.interrupt("learn", time=6)
    interrupted = small_run(MADE)
    resumed = small_run(MADE, {"resume": {"checkpoint": "auto"}})

    assert (interrupted.status, resumed.status, resumed.steps) == ("interrupted", "finished", 4)
    assert 0 < interrupted.steps < 4
    assert played(notes) == whole


def test_one_environment_alone_has_no_second_set_of_metrics(small_run, notes):
    small_run(MADE, {"env": {"use": ["riddles"]}})

    names = {name for line in small_run.lines() for name in line.get("metrics", ())}
    assert "rollout/turns" in names
    assert not {name for name in names if "riddles" in name}


def test_the_runs_record_has_the_environments_versions(small_run, notes):
    small_run(MADE)

    record = json.loads((small_run.folder / "run" / "plugins.json").read_text())
    assert record["history"][-1]["environments"] == {"riddles": "riddles", "stream": "stream"}
