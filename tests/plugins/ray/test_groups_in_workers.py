"""Groups played and rewarded in workers are those of the driver, and their tokens do not come to it."""

import asyncio
import os
import re
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("ray")

from tests.deadlines import HANG_S

from rlhf_core import RewardError, RLHFError
from rlhf_core.contracts import (
    ComponentRef,
    GroupSettings,
    RewardSpec,
    RolloutSpec,
    SamplingParams,
    Task,
    TrajectoryColumns,
    Uid,
)
from rlhf_core.rng import sample_seed
from rlhf_plugin_ray.batches.stored_tokens import StoredBlock
from rlhf_testing.errors import has_code
from rlhf_trainer.rollouts.worker import GroupRunner, open_rewards, open_rollouts

pytestmark = [pytest.mark.scale, pytest.mark.slow]

WORKERS = {"rollout_workers": 2, "cpus_per": {"rollout": 0.5}}
NUM_TASKS, NUM_SAMPLES = 5, 3

REWARD = """
def length(prompt, response, label, **row):
    if label == "bad":
        raise ValueError("no score for this")
    return len(response) / 10
"""


@pytest.fixture
def rollouts(spec, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "length.py").write_text(REWARD)

    def make(component="function", on_error="fail"):
        reward = RewardSpec(
            component=ComponentRef(
                kind="rlhf_rewards", name=component, options={"path": "length.py:length"}
            ),
            section=f"reward.{component}",
            shared={"weight": 2.0, "on_error": on_error},
        )
        chosen = RolloutSpec(
            executor=ComponentRef(kind="rlhf_rollout_executors", name="single_turn"),
            tokenizer_path=str(model),
            rewards=(reward,),
        )
        return replace(spec(), rollouts=chosen)

    return make


SETTINGS = GroupSettings(
    num_samples=NUM_SAMPLES,
    sampling=SamplingParams(max_new_tokens=24, min_new_tokens=8),
    max_length=200,
    seed_of=partial(sample_seed, 7),
    with_greedy=True,
)


def tasks(bad=None):
    return [
        Task(
            uid=Uid(0, n),
            prompt_ids=(5, 6, 7 + n),
            row={"label": "bad" if n == bad else "good"},
        )
        for n in range(NUM_TASKS)
    ]


async def in_this_process(spec, plugins, engine, some):
    runner = GroupRunner(
        open_rollouts(spec.rollouts, plugins), open_rewards(spec.rollouts, plugins)
    )
    await runner.start()
    try:
        return await asyncio.gather(*(runner.play(task, SETTINGS, engine) for task in some))
    finally:
        await runner.close()


def assert_same(actual, expected):
    left, right = actual.arrays(), expected.arrays()
    assert left.keys() == right.keys()
    for name, column in left.items():
        np.testing.assert_array_equal(column, right[name], err_msg=name)


@pytest.fixture
def reads(monkeypatch):
    """The blocks that this process has read."""
    seen, original = [], StoredBlock.read

    def read(block):
        seen.append(block)
        return original(block)

    monkeypatch.setattr(StoredBlock, "read", read)
    return seen


def test_groups_are_equal_to_the_bit_and_ranks_score_what_was_never_here(
    placed, rollouts, plugins, reads
):
    spec, rows = rollouts(), np.array([9, 0, 4, 13])

    async def both():
        async with placed(spec, **WORKERS) as run:
            here = await in_this_process(spec, plugins, run.engine, tasks())
            there = await asyncio.gather(*(run.groups.play(task, SETTINGS) for task in tasks()))
            near, far = (
                TrajectoryColumns.concatenate([group.batch for group in groups])
                for groups in (here, there)
            )
            scored = await run.roles["policy"].logprobs(far.select(rows))
            assert reads == []
            np.testing.assert_array_equal(
                scored, await run.roles["policy"].logprobs(near.select(rows))
            )
            assert_same(far, near)
            return near

    batch = asyncio.run(both())

    assert len(batch) == NUM_TASKS * NUM_SAMPLES
    assert batch.metrics.keys() == {"greedy_reward"}
    assert (batch.reward > 0).all()
    np.testing.assert_allclose(batch.reward, 2 * batch.rewards["function"])


def test_one_process_scores_for_all_workers_what_each_would_and_its_death_ends_the_run(
    placed, rollouts, plugins, reads
):
    async def play():
        async with placed(rollouts(), rewards="driver", **WORKERS) as run:
            here = await in_this_process(rollouts(), plugins, run.engine, tasks())
            there = await asyncio.gather(*(run.groups.play(task, SETTINGS) for task in tasks()))
            assert reads == []
            for near, far in zip(here, there, strict=True):
                assert_same(far.batch, near.batch)
            with pytest.raises(
                RewardError,
                match=r"the rewards .*could not score 0\.2\.0\.0",
                check=has_code("reward/raised"),
            ) as raised:
                await asyncio.gather(*(run.groups.play(task, SETTINGS) for task in tasks(bad=2)))
            judge = re.search(r"the rewards \(pid (\d+)", str(raised.value))
            os.kill(int(judge[1]), signal.SIGKILL)
            with pytest.raises(
                RLHFError, match=r"the rewards .*died", check=has_code("ray/process-lost")
            ):
                async with asyncio.timeout(HANG_S):
                    await run.groups.play(tasks()[0], SETTINGS)

    asyncio.run(play())


def test_a_sample_without_a_score_drops_its_group_or_ends_the_run(placed, rollouts):
    async def play(on_error):
        async with placed(rollouts(on_error=on_error), **WORKERS) as run:
            return await asyncio.gather(*(run.groups.play(task, SETTINGS) for task in tasks(bad=2)))

    groups = asyncio.run(play("drop"))
    assert [group.dropped for group in groups] == [None, None, "function_failed", None, None]
    assert groups[2].batch is None

    with pytest.raises(
        RewardError,
        match=r"rollout worker \d .*could not score 0\.2\.0\.0",
        check=has_code("reward/raised"),
    ):
        asyncio.run(play("fail"))
