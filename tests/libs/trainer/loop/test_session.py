"""What a run consists of: what is built, in which order, and how it is taken apart, also after a failed start."""

import asyncio
import subprocess
import sys
import threading
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from tests.deadlines import HANG_S

from rlhf_core import Component, ConfigError, DataError, RewardError, RolloutError
from rlhf_core.contracts import Task, Uid
from rlhf_data.made.tasks import MadePart, MadeTasks
from rlhf_testing.errors import has_code
from rlhf_trainer.learning.learner import BatchLearner
from rlhf_trainer.loop import session
from rlhf_trainer.loop.session import open_session, total_steps_of

EVAL = {"eval": {"fraction": 0.25}}
AHEAD = {"rollout": {"max_staleness": 1}}


def reward_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("reward ")]


@pytest.fixture
def opened(small_run):
    """Opens a session and gives it to ``look`` before it is taken apart."""

    def open_and(look, *changes, prepare=lambda runtime: None):
        async def play(resolved, plugins):
            async with AsyncExitStack() as stack:
                session = await open_session(resolved, plugins, stack)
                found = look(session)
                return await found if asyncio.iscoroutine(found) else found

        with small_run.configured(*changes, prepare=prepare) as (resolved, plugins):
            return asyncio.run(play(resolved, plugins))

    return open_and


@pytest.mark.parametrize(
    ("train", "batch_size", "num_tasks", "expected"),
    [
        ({"steps": 7, "epochs": 1}, 5, 12, 7),
        ({"steps": None, "epochs": 1}, 5, 12, 3),  # the last step has two prompts
        (
            {"steps": None, "epochs": 2},
            5,
            12,
            5,
        ),  # 24 prompts: epochs are not rounded up one by one
        ({"steps": None, "epochs": 1}, 6, 12, 2),
        ({"steps": None, "epochs": 1}, 100, 12, 1),
    ],
)
def test_steps_are_those_asked_for_or_as_many_as_the_epochs_take(
    small_run, train, batch_size, num_tasks, expected
):
    changes = {"train": train, "rollout": {"batch_size": batch_size}}
    with small_run.configured(changes) as (resolved, _):
        assert total_steps_of(resolved, range(num_tasks)) == expected


def test_a_critic_that_warms_up_for_all_steps_of_the_epochs_is_refused(opened):
    """The policy would rest in each of them. How many they are is known when the rows were counted."""
    train = {"steps": None, "epochs": 1}
    alone = {"train": train, "algo": {"advantage": {"estimator": "gae"}}}

    steps = opened(lambda session: session.total_steps, alone)
    with pytest.raises(ConfigError, check=has_code("config/policy-never-trained")):
        opened(lambda session: None, {**alone, "critic": {"warmup_steps": steps}})


def test_a_set_that_cannot_be_opened_is_reported_before_a_tokenizer_is_read(opened, monkeypatch):
    monkeypatch.setattr(session, "load_tokenizer", lambda *_, **__: pytest.fail("it is read"))
    changes = {"eval": {"data": ["rows.jsonl", "absent.jsonl"]}}

    with pytest.raises(DataError, match="absent", check=has_code("data/file-not-found")):
        opened(lambda session: None, changes)


def test_the_parts_of_a_run_are_imported_without_torch():
    """Its import takes seconds, after which a person reads of a misspelled set."""
    code = (
        "import sys, rlhf_trainer.loop.run; print({'torch', 'transformers'} & sys.modules.keys())"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


class Streams:
    """Rows of an environment, as many as the number says; None: without end."""

    def __init__(self, size):
        self.size = size


@pytest.mark.parametrize(
    ("sizes", "expected"), [((24,), 4), ((24, None), 4 * 2), ((None,), None), ((None, None), None)]
)
def test_an_epoch_of_made_tasks_ends_where_one_of_them_has_an_end(small_run, sizes, expected):
    """24 tasks and a batch of 6 are four steps; an endless half beside them makes it eight."""
    parts = [
        MadePart(environment=f"e{n}", share=1 / len(sizes), rows=Streams(size))
        for n, size in enumerate(sizes)
    ]
    tasks = MadeTasks(parts, 6)
    changes = {"train": {"steps": None, "epochs": 1}, "rollout": {"batch_size": 6}}
    with small_run.configured(changes) as (resolved, _):
        if expected is not None:
            assert total_steps_of(resolved, tasks) == expected
            return
        with pytest.raises(
            ConfigError, match=r"--steps.*e0", check=has_code("config/steps-missing")
        ):
            total_steps_of(resolved, tasks)


def test_rows_that_are_held_out_are_not_trained_on(opened):
    def look(session):
        held_out = sum(map(len, session.evaluator.sets.values()))
        return len(session.tasks), held_out, session.total_steps

    num_tasks, held_out, steps = opened(look, EVAL, {"train": {"steps": None, "epochs": 1}})

    assert held_out > 0
    assert num_tasks + held_out == 12
    assert steps == -(-num_tasks // 2)


@pytest.mark.parametrize(
    ("own", "longest", "sampled"),
    [
        ({}, 24, (0.9, 7, 0.0, 8)),
        ({"top_p": 1.0, "top_k": 0, "min_p": 0.1}, 24, (1.0, 0, 0.1, 8)),
        # Prompts of 16 tokens and answers of 40, in evaluations alone.
        ({"max_new_tokens": 40}, 56, (0.9, 7, 0.0, 40)),
        ({"max_new_tokens": 2}, 18, (0.9, 7, 0.0, 2)),
        ({"max_new_tokens": 40, "max_length": 48}, 48, (0.9, 7, 0.0, 40)),
    ],
)
def test_evaluations_are_sampled_as_training_is_except_for_options_of_their_own(
    opened, own, longest, sampled
):
    def look(session):
        context = session.evaluator.context
        used = session.evaluator.run_options.eval.sampling(context.sampling, 0.5)
        values = (used.top_p, used.top_k, used.min_p, used.max_new_tokens)
        return context.max_length, values, used.stop, used.temperature

    found = opened(
        look, {"eval": EVAL["eval"] | own}, {"rollout": {"top_p": 0.9, "top_k": 7, "stop": ["b"]}}
    )

    assert found == (longest, sampled, ("b",), 0.5)


def test_without_held_out_rows_there_is_no_evaluator(opened):
    assert opened(lambda session: session.evaluator) is None


@pytest.mark.parametrize("changes", [EVAL, {"eval": {"every": 0}}])
def test_runs_that_are_evaluated_have_something_to_evaluate_on_or_no_interval(opened, changes):
    opened(lambda session: None, changes)


def test_an_interval_of_evaluations_without_anything_to_evaluate_on_is_refused_in_files_too(opened):
    with pytest.raises(
        ConfigError,
        match=r"every.* is 2, but there is nothing .* --eval.fraction",
        check=has_code("eval/nothing-held-out"),
    ):
        opened(lambda session: None, {"eval": {"every": 2}})


def test_the_runtime_is_told_of_the_roles_the_engine_and_who_plays(opened, small_run):
    opened(lambda session: None, AHEAD)

    (spec,) = small_run.runtime.specs
    assert list(spec.roles) == ["policy"]
    assert spec.engine_spec.max_length == 16 + 8
    assert spec.engine_spec.eos_token_ids == (2,)
    assert spec.overlaps
    assert spec.rollouts.executor.name == "agents:single_turn"
    assert [reward.section for reward in spec.rollouts.rewards] == ["reward.letters"]


def test_the_runtimes_learner_stands_in_for_the_core_s(opened, small_run):
    assert opened(lambda session: session.learner) is small_run.runtime.learner


def test_without_a_learner_of_the_runtime_the_core_learns(opened, changed_placement):
    learner = opened(lambda session: session.learner, prepare=changed_placement(learner=None))

    assert isinstance(learner, BatchLearner)


class Refusing:
    """A player of groups in other processes."""

    async def play(self, task, settings):
        raise RolloutError(f"asked for {task.uid}")


def test_the_runtimes_processes_play_the_groups(small_run, changed_placement):
    with pytest.raises(RolloutError, match="asked for 0", check=has_code("rollout/failed")):
        small_run.steps(prepare=changed_placement(groups=Refusing()))

    assert "generate" not in small_run.events


def test_no_reward_starts_here_where_the_runtime_plays_and_scores(opened, changed_placement):
    def prepare(runtime):
        runtime.plays_groups = True
        changed_placement(groups=Refusing())(runtime)

    assert opened(lambda session: reward_threads(), prepare=prepare) == []


@pytest.fixture
def changed_placement():
    """``prepare`` for a runtime whose placement has these fields changed."""

    def changed(**fields):
        def prepare(runtime):
            start = runtime.start

            async def starting(spec, plugins):
                return replace(await start(spec, plugins), **fields)

            runtime.start = starting

        return prepare

    return changed


def test_rewards_outlive_the_runtime_and_are_ended(opened, small_run):
    """Workers of the runtime may still be asking them."""
    alive = []
    small_run.diary.on("runtime closes", lambda: alive.extend(reward_threads()))

    opened(lambda session: None)

    assert alive == ["reward letters"]
    assert reward_threads() == []


def test_what_is_in_flight_is_stopped_before_the_runtime_closes(small_run):
    """A group that generates, as the run ends, has no engine any more."""
    in_flight = []

    def noted(runtime):
        runtime.engine.delays_s = iter([0.0, 0.0, HANG_S, HANG_S])
        close = runtime.close

        async def noting():
            in_flight.append(runtime.engine.under_way)
            await close()

        runtime.close = noting

    changes = {"rollout": {"max_staleness": 1, "in_flight_updates": True}}
    small_run.steps(changes, prepare=noted)

    assert small_run.runtime.engine.playing == [2]
    assert in_flight == [0]


def test_bad_rows_are_reported_before_a_reward_or_a_model_is_started(opened, small_run):
    (small_run.folder / "rows.jsonl").write_text('{"prompt": ""}\n')

    with pytest.raises(DataError, match=r"rows\.jsonl", check=has_code("data/empty")):
        opened(lambda session: None)

    assert small_run.events == []
    assert reward_threads() == []


def test_a_reward_that_cannot_be_built_is_reported_before_a_model_is_loaded(opened, small_run):
    def no_reward(config):
        raise ValueError("no such table")

    changes = {"reward": {"use": ["letters", "broken"], "broken": {"isolate": False}}}
    small_run.with_component("rlhf_rewards", Component(name="broken", factory=no_reward))
    with pytest.raises(
        RewardError,
        match=r"reward broken .* could not be built.*no such table",
        check=has_code("reward/not-started"),
    ):
        opened(lambda session: None, changes)

    assert small_run.events == []
    assert reward_threads() == []


def test_a_runtime_that_cannot_start_is_closed_and_so_are_the_rewards(opened, small_run):
    small_run.diary.fail("runtime starts", RolloutError("no GPU"))

    with pytest.raises(RolloutError, match="no GPU", check=has_code("rollout/failed")):
        opened(lambda session: None)

    assert small_run.events == ["runtime starts", "runtime closes"]
    assert reward_threads() == []


def test_rewards_end_also_when_the_runtime_cannot_be_closed(opened, small_run):
    small_run.diary.fail("runtime closes", RolloutError("a rank hangs"))

    with pytest.raises(RolloutError, match="a rank hangs", check=has_code("rollout/failed")):
        opened(lambda session: None)

    assert reward_threads() == []


class Maze:
    """An environment of which each episode needs its own."""

    def __init__(self, options):
        self.options = options

    async def reset(self, task, seed): ...

    async def step(self, action): ...

    async def close(self): ...


MAZE = {
    "env": {"use": ["maze"]},
    "rollout": {"executor": "multi_turn", "max_length": 48},
}


class Looking:
    """An executor that only looks at what it gets."""

    async def run(self, task, samples, context):
        self.context = context
        raise RolloutError("seen")


def context_of(small_run, *changes, needs=()):
    executor = Looking()
    looking = Component(name="looking", factory=lambda config: executor, needs=frozenset(needs))
    small_run.with_component("rlhf_rollout_executors", looking)
    with pytest.raises(RolloutError, match="seen", check=has_code("rollout/failed")):
        small_run.steps(*changes, {"rollout": {"executor": "looking"}})
    return executor.context


def test_each_episode_gets_an_environment_of_its_own(small_run):
    small_run.with_component("rlhf_environments", Component(name="maze", factory=Maze))

    make = context_of(small_run, MAZE, needs=["environment"]).environment

    task = Task(uid=Uid(0, 0))
    one, other = make(task), make(task)
    assert isinstance(one, Maze)
    assert one is not other
    assert one.options == other.options


def test_episodes_get_the_runs_sampling_and_lengths_and_no_environment_that_it_does_not_have(
    small_run,
):
    context = context_of(small_run, {"rollout": {"temperature": 0.5}})

    assert context.environment is None
    assert context.engine is small_run.runtime.engine
    assert context.max_length == 16 + 8
    assert (context.sampling.temperature, context.sampling.max_new_tokens) == (0.5, 8)


def test_without_rewards_the_environment_alone_scores_and_no_worker_is_started(opened, small_run):
    small_run.with_component("rlhf_environments", Component(name="maze", factory=Maze))

    threads = opened(lambda session: reward_threads(), MAZE, {"reward": {"use": []}})

    assert threads == []
    assert small_run.runtime.specs[0].rollouts.rewards == ()
