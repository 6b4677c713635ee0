"""Groups that go to a rollout worker and come back several at a time live and die each by itself."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from tests.deadlines import HANG_S, until

ray = pytest.importorskip("ray")

from rlhf_core import RewardError  # noqa: E402  (after importorskip)
from rlhf_core.contracts import (  # noqa: E402
    ComponentRef,
    GroupSettings,
    RolloutSpec,
    SamplingParams,
    Task,
    TrajectoryColumns,
    Uid,
)
from rlhf_core.rng import sample_seed  # noqa: E402
from rlhf_plugin_ray.batches.stored_tokens import references_of  # noqa: E402
from rlhf_plugin_ray.config import RayRuntimeConfig  # noqa: E402
from rlhf_plugin_ray.processes.process import ActorProcess  # noqa: E402
from rlhf_plugin_ray.processes.supervisor import ProcessLost, Supervisor  # noqa: E402
from rlhf_plugin_ray.rollouts.rollout_pool import RolloutPool  # noqa: E402
from rlhf_testing.errors import has_code  # noqa: E402

from .conftest import COMPONENTS  # noqa: E402

pytestmark = [pytest.mark.scale, pytest.mark.slow]

SETTINGS = GroupSettings(
    num_samples=3,
    sampling=SamplingParams(max_new_tokens=1),
    max_length=8,
    seed_of=partial(sample_seed, 7),
)


@pytest.fixture
def workers(cluster, monkeypatch, tmp_path):
    """``async with workers(2) as run``: ``run.pool``, ``run.pids``, and the folder by which groups are directed."""
    monkeypatch.syspath_prepend(COMPONENTS)
    from staged_workers import StagedWorker

    @asynccontextmanager
    async def start(count, **options):
        supervisor, pids, actors = Supervisor(), [], []

        async def launch(index):
            actor = ray.remote(StagedWorker).options(num_cpus=0.5).remote(str(tmp_path))
            actors.append(actor)
            pids.append(await actor.pid.remote())
            return ActorProcess(actor, f"rollout worker {index}")

        reference = ComponentRef(kind="rlhf_rollout_executors", name="single_turn")
        pool = RolloutPool(
            launch,
            RolloutSpec(executor=reference, tokenizer_path=""),
            supervisor,
            RayRuntimeConfig(**options),
        )
        pool.connect(
            SimpleNamespace(
                crew=SimpleNamespace(members=[], over=None, follow=lambda changed: None), version=0
            )
        )
        try:
            async with asyncio.timeout(HANG_S):
                await pool.crew.start_all(count)
                yield SimpleNamespace(pool=pool, pids=pids, supervisor=supervisor)
        finally:
            pool.crew.close()
            supervisor.close()
            for actor in actors:
                ray.kill(actor)

    return start


def task(number, **row):
    return Task(uid=Uid(0, number), prompt_ids=(5, 6, 7 + number), row=row)


def names(folder, kind):
    return sorted(path.name for path in folder.glob(f"{kind}-*"))


def assert_is_group_of(finished, played):
    """Its own rows, columns and tokens, and nothing of groups that came along."""
    from staged_workers import group_of

    actual, expected = finished.batch.arrays(), group_of(played, SETTINGS).batch.arrays()
    assert actual.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_array_equal(actual[name], column, err_msg=name)


def test_groups_of_one_call_end_fail_and_are_cancelled_each_by_itself(workers, tmp_path):
    quick, later = task(0), task(1, until="go")
    failing, unwanted = task(2, fail="no score for this"), task(3, until="never")

    async def play():
        async with workers(1) as run:
            playing = [
                asyncio.create_task(run.pool.play(one, SETTINGS))
                for one in (quick, later, failing, unwanted)
            ]
            assert_is_group_of(await playing[0], quick)
            with pytest.raises(
                RewardError,
                match="rollout worker 0: no score for this",
                check=has_code("reward/failed"),
            ) as raised:
                await playing[2]
            assert "staged_workers.py" in raised.value.__notes__[0]
            assert not playing[1].done()
            playing[3].cancel()
            await until(lambda: names(tmp_path, "cancelled") == ["cancelled-3"])
            assert run.pool.crew.members[0].load == 3
            (tmp_path / "go").touch()
            assert_is_group_of(await playing[1], later)
            with pytest.raises(asyncio.CancelledError):
                await playing[3]
            assert run.pool.crew.members[0].load == 0

    asyncio.run(play())
    assert [(tmp_path / call).read_text() for call in names(tmp_path, "call")] == ["4"]


def test_groups_that_end_together_share_a_block_and_are_dealt_by_load(workers, tmp_path):
    tasks = [task(n, until="go") for n in range(8)]

    async def play():
        async with workers(2) as run:
            playing = [asyncio.create_task(run.pool.play(one, SETTINGS)) for one in tasks]
            await until(lambda: len(names(tmp_path, "begun")) == len(tasks))
            assert [member.load for member in run.pool.crew.members] == [12, 12]
            (tmp_path / "go").touch()
            groups = await asyncio.gather(*playing)
            batch = TrajectoryColumns.concatenate([group.batch for group in groups])
            for each, group in zip(tasks, groups, strict=True):
                assert_is_group_of(group, each)
            return len(references_of(batch)), batch.select(np.arange(3, 6)).tokens.read()

    num_blocks, second = asyncio.run(play())

    assert [(tmp_path / call).read_text() for call in names(tmp_path, "call")] == ["4", "4"]
    assert num_blocks < len(tasks)
    assert second.token_ids.reshape(3, 4)[:, 2].tolist() == [8, 8, 8]


def test_what_a_killed_worker_owed_is_played_by_another_and_nothing_comes_twice(workers, tmp_path):
    tasks = [task(n, until="go") for n in range(6)] + [task(6), task(7)]

    async def play():
        async with workers(2) as run:
            came = []

            async def one(each):
                came.append((each, await run.pool.play(each, SETTINGS)))

            playing = [asyncio.create_task(one(each)) for each in tasks]
            await until(lambda: len(came) == 2)
            os.kill(run.pids[0], signal.SIGKILL)
            await until(lambda: len(names(tmp_path, "begun")) == len(tasks) + 3)
            (tmp_path / "go").touch()
            await asyncio.gather(*playing)
            # Also what came from the worker that is dead.
            for each, group in came:
                assert_is_group_of(group, each)
            return run.pids[0], [each.uid.prompt for each, _ in came]

    dead, came = asyncio.run(play())

    assert sorted(came) == list(range(8))
    begun = [name.split("-")[1:] for name in names(tmp_path, "begun")]
    again = {number for number, pid in begun if int(pid) != dead} & {
        number for number, pid in begun if int(pid) == dead
    }
    assert len(again) == 3
    assert again <= set("012345")


def test_a_group_that_is_late_costs_its_worker_and_not_the_other_groups(workers, tmp_path, caplog):
    late, other = task(0, until="go"), task(1, until="go")

    async def play():
        async with workers(1, rollout_timeout_s=3.0) as run:
            playing = [asyncio.create_task(run.pool.play(one, SETTINGS)) for one in (late, other)]
            await until(lambda: len(run.pids) == 2)
            (tmp_path / "go").touch()
            for one, group in zip((late, other), await asyncio.gather(*playing), strict=True):
                assert_is_group_of(group, one)

    asyncio.run(play())

    assert "rollout worker 0 did not answer the group 0.0.0.0 within 3 s; it may" in caplog.text


def test_groups_end_when_the_run_cannot_go_on(workers):
    async def play():
        async with workers(1) as run:
            playing = asyncio.create_task(run.pool.play(task(0, until="never"), SETTINGS))
            await until(lambda: run.pool.crew.members[0].load)
            run.supervisor.fail(ProcessLost("policy rank 0 died"))
            with pytest.raises(ProcessLost, match="policy rank 0 died"):
                await playing

    asyncio.run(play())
