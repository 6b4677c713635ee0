"""Episodes in processes of their own give what they give in the driver, also when processes die."""

import asyncio
import os
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.deadlines import HANG_S, until

from rlhf_core import ConfigError, RLHFError, RolloutError
from rlhf_core.contracts import (
    ComponentRef,
    EnvironmentSpec,
    GroupSettings,
    RolloutSpec,
    SamplingParams,
    Task,
    TrajectoryColumns,
    Uid,
)
from rlhf_core.rng import sample_seed
from rlhf_testing.errors import has_code
from rlhf_trainer.rollouts.worker import GroupRunner, open_rollouts

from .conftest import engine_pids, pid_of

pytestmark = [pytest.mark.scale, pytest.mark.slow]

WORKERS = {"rollout_workers": 2, "cpus_per": {"rollout": 0.5}}
TAKEN_FOR_DEAD_S = 30
"""Deadline of the product, after which a worker that hangs is replaced."""
NUM_TASKS, NUM_SAMPLES = 6, 3


@pytest.fixture
def rollouts(spec, model):
    """Builds a RuntimeSpec whose episodes are those of an executor, with or without an environment."""

    def make(executor="single_turn", environments=(), **options):
        kinds = ("rlhf_rollout_executors", "rlhf_environments")
        chosen = RolloutSpec(
            executor=ComponentRef(kind=kinds[0], name=executor, options=options),
            environments=tuple(
                EnvironmentSpec(
                    component=ComponentRef(kind=kinds[1], name=name), section=f"env.{name}"
                )
                for name in environments
            ),
            tokenizer_path=str(model),
        )
        return replace(spec(), rollouts=chosen)

    return make


SETTINGS = GroupSettings(
    num_samples=NUM_SAMPLES,
    sampling=SamplingParams(max_new_tokens=24, min_new_tokens=8),
    max_length=200,
    seed_of=partial(sample_seed, 7),
)


async def play(play_group, num_tasks=NUM_TASKS):
    """All episodes of some tasks at the same time, in order."""
    tasks = [Task(uid=Uid(0, n), prompt_ids=(5, 6, 7 + n)) for n in range(num_tasks)]
    groups = await asyncio.gather(*(play_group(task, SETTINGS) for task in tasks))
    return TrajectoryColumns.concatenate([group.batch for group in groups])


async def in_the_driver(spec, plugins, engine):
    runner = GroupRunner(open_rollouts(spec.rollouts, plugins), None)
    return await play(partial(runner.play, engine=engine))


def assert_same(actual, expected):
    left, right = actual.arrays(), expected.arrays()
    assert left.keys() == right.keys()
    for name, column in left.items():
        np.testing.assert_array_equal(column, right[name], err_msg=name)


def worker_pids(run):
    return [pid_of(member.process) for member in run.groups.crew.members]


def test_workers_return_what_the_driver_would_have_to_the_bit(placed, rollouts, plugins):
    """Here in two turns with an environment; the tests below have one turn."""
    spec = rollouts("multi_turn", ["echo_after_hint"], max_turns=3)

    async def both():
        async with placed(spec, **WORKERS) as run:
            assert len(set(worker_pids(run))) == 2
            expected = await in_the_driver(spec, plugins, run.engine)
            actual = await play(run.groups.play)
            await assert_cancelling_leaves_nothing(run)
            return expected, actual

    expected, actual = asyncio.run(both())

    assert len(expected) == NUM_TASKS * NUM_SAMPLES
    assert set(expected.num_turns) == {2}
    assert_same(actual, expected)


async def assert_cancelling_leaves_nothing(run):
    playing = asyncio.create_task(play(run.groups.play))
    await until(lambda: all(member.load for member in run.groups.crew.members))
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert [member.load for member in run.groups.crew.members] == [0, 0]
    # An engine that still computed would refuse to be put to sleep.
    await asyncio.sleep(1.0)
    await run.engine.sleep()


def test_a_worker_and_an_engine_that_are_killed_at_work_change_nothing(placed, rollouts, plugins):
    spec = rollouts()

    async def both():
        options = {"engines": 2, "cpus_per": {"rollout": 0.25, "engine": 0.5, "policy": 0.5}}
        async with placed(spec, **{**WORKERS, **options}) as run:
            expected = await in_the_driver(spec, plugins, run.engine)
            dead_engine, dead_worker = engine_pids(run.engine)[0], worker_pids(run)[0]
            # Stopped first, so that they certainly die with work in progress.
            os.kill(dead_engine, signal.SIGSTOP)
            os.kill(dead_worker, signal.SIGSTOP)
            playing = asyncio.create_task(play(run.groups.play))
            await until(lambda: all(member.load for member in run.groups.crew.members))
            os.kill(dead_worker, signal.SIGKILL)
            os.kill(dead_engine, signal.SIGKILL)
            async with asyncio.timeout(HANG_S):
                await until(lambda: dead_worker not in worker_pids(run))
                await until(lambda: dead_engine not in engine_pids(run.engine))
            async with asyncio.timeout(HANG_S):
                actual = await playing
            async with asyncio.timeout(HANG_S):
                await until(lambda: len(worker_pids(run)) == len(engine_pids(run.engine)) == 2)
            again = await play(run.groups.play)
            return expected, actual, again

    expected, actual, again = asyncio.run(both())

    assert_same(actual, expected)
    assert_same(again, expected)


def test_without_restarts_the_last_death_of_a_kind_ends_the_episodes(placed, rollouts):
    options = {"max_engine_restarts": 0, "max_rollout_restarts": 0}

    async def deaths():
        async with placed(rollouts(), **WORKERS, **options) as run:
            os.kill(engine_pids(run.engine)[0], signal.SIGKILL)
            with pytest.raises(
                RolloutError,
                match=r"rollout worker \d \(pid.* no engine is left; engine 0 .*died",
                check=has_code("ray/workers-lost"),
            ):
                async with asyncio.timeout(HANG_S):
                    await play(run.groups.play, 1)
            for pid in worker_pids(run):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(
                RolloutError,
                match=r"the group 0\.0\.0\.0: no rollout worker is left; .*died.*"
                r"0 restarts were allowed \(runtime\.ray\.max_rollout_restarts\)",
                check=has_code("ray/workers-lost"),
            ):
                async with asyncio.timeout(HANG_S):
                    await play(run.groups.play, 1)

    asyncio.run(deaths())


def test_a_worker_that_hangs_is_taken_for_dead_and_the_only_engine_is_waited_for(placed, rollouts):
    async def both():
        async with placed(rollouts(), rollout_timeout_s=TAKEN_FOR_DEAD_S, **WORKERS) as run:
            expected = await play(run.groups.play, 2)
            (dead,), hanging = engine_pids(run.engine), worker_pids(run)[0]
            os.kill(dead, signal.SIGKILL)
            os.kill(hanging, signal.SIGSTOP)
            async with asyncio.timeout(HANG_S):
                actual = await play(run.groups.play, 2)
            assert dead not in engine_pids(run.engine)
            assert hanging not in worker_pids(run)
            return expected, actual

    expected, actual = asyncio.run(both())

    assert_same(actual, expected)


def test_what_an_episode_raises_arrives_with_its_class_and_the_workers_name(placed, rollouts):
    async def fails():
        async with placed(rollouts("multi_turn"), **WORKERS) as run:
            await play(run.groups.play, 1)

    with pytest.raises(
        RLHFError,
        match=r"rollout worker \d .*multi_turn needs an environment",
        check=has_code("environment/none"),
    ):
        asyncio.run(fails())


def test_workers_that_do_not_fit_are_refused_at_once(placed, rollouts):
    async def start():
        async with placed(rollouts(), rollout_workers=9):
            pass

    with pytest.raises(
        ConfigError,
        match=r"needs 10 CPUs, the Ray cluster has 2(.|\n)*rollout x9",
        check=has_code("ray/too-few-resources"),
    ):
        asyncio.run(start())
