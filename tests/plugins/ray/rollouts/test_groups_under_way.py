"""What a rollout worker does with its groups: each is handed over once, or ended."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.scale

from rlhf_core import RewardError, RLHFError  # noqa: E402  (after importorskip)
from rlhf_core.contracts import (  # noqa: E402
    FinishedGroup,
    Task,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_plugin_ray.rollouts import groups_under_way  # noqa: E402
from rlhf_plugin_ray.rollouts.group_messages import GroupJob  # noqa: E402
from rlhf_plugin_ray.rollouts.groups_under_way import GroupsUnderWay  # noqa: E402


def jobs(*numbers):
    return [
        GroupJob(number=n, task=Task(uid=Uid(0, n), prompt_ids=()), settings=None, version=0)
        for n in numbers
    ]


def group(number):
    row = Trajectory(
        uid=Uid(0, number),
        token_ids=np.array([number, number], np.int32),
        action_mask=np.array([False, True]),
        rollout_logprobs=np.zeros(1, np.float32),
        weight_version=np.zeros(1, np.int32),
        turns=(Turn(start=1, end=2),),
    )
    return FinishedGroup(batch=TrajectoryColumns.from_trajectories([row]))


class Stage:
    """Ends groups when the test says so."""

    def __init__(self):
        self.ends = {}
        self.under_way = GroupsUnderWay(self.play)

    async def play(self, job):
        self.ends[job.number] = asyncio.get_running_loop().create_future()
        return await self.ends[job.number]

    async def end(self, *numbers):
        for number in numbers:
            self.ends[number].set_result(group(number))
        await self.settle()

    @staticmethod
    async def settle():
        for _ in range(5):
            await asyncio.sleep(0)


def test_what_has_ended_comes_at_once_and_once_with_its_rows_of_one_block():
    async def play():
        stage = Stage()
        stage.under_way.begin(jobs(0, 1, 2))
        asking = asyncio.create_task(stage.under_way.done())
        await stage.settle()
        assert not asking.done()
        await stage.end(2, 0)
        done, tokens = await asking
        assert list(done.finished) == [2, 0]
        assert [done.finished[n].batch.tokens.row.tolist() for n in (2, 0)] == [[0], [1]]
        assert tokens.token_ids.tolist() == [2, 2, 0, 0]
        await stage.end(1)
        done, tokens = await stage.under_way.done()
        assert list(done.finished) == [1]
        assert tokens.token_ids.tolist() == [1, 1]

    asyncio.run(play())


def test_a_failure_comes_as_plain_values_of_the_nearest_class_of_the_cores():
    class OfAUsersFile(RewardError):
        def __init__(self):
            super().__init__("no score")

    async def play():
        stage = Stage()
        stage.under_way.begin(jobs(0, 1, 2))
        await stage.settle()
        stage.ends[0].set_exception(OfAUsersFile())
        stage.ends[1].set_exception(KeyError("label"))
        await stage.end(2)
        return await stage.under_way.done()

    done, tokens = asyncio.run(play())

    errors = {number: failure.error("worker 0") for number, failure in done.failed.items()}
    assert {number: type(error) for number, error in errors.items()} == {
        0: RewardError,
        1: RLHFError,
    }
    assert [str(errors[n]) for n in (0, 1)] == [
        "worker 0: no score",
        "worker 0 failed: KeyError: 'label'",
    ]
    assert list(done.finished) == [2]
    assert len(tokens) == 1


def test_stopped_groups_end_and_never_come_whenever_that_is_heard():
    async def play():
        stage = Stage()
        stage.under_way.stop([3])
        stage.under_way.begin(jobs(0, 1, 2, 3))
        await stage.settle()
        assert list(stage.ends) == [0, 1, 2]
        await stage.end(0)
        stage.under_way.stop([0, 1])
        await stage.settle()
        assert stage.ends[1].cancelled()
        await stage.end(2)
        done, _ = await stage.under_way.done()
        assert list(done.finished) == [2]
        assert not done.failed

    asyncio.run(play())


def test_the_first_of_many_waits_until_others_have_ended_or_it_has_waited_enough(monkeypatch):
    monkeypatch.setattr(groups_under_way, "MAX_WAIT_SHARE", 1e9)
    monkeypatch.setattr(groups_under_way, "MAX_WAIT_S", 1000.0)

    async def play():
        stage = Stage()
        stage.under_way.begin(jobs(*range(20)))
        asking = asyncio.create_task(stage.under_way.done())
        await stage.settle()
        await stage.end(0, 1)
        assert not asking.done()
        await stage.end(2)
        assert list((await asking)[0].finished) == [0, 1, 2]
        monkeypatch.setattr(groups_under_way, "MAX_WAIT_S", 0.01)
        await stage.end(3)
        assert list((await stage.under_way.done())[0].finished) == [3]
        # Stopping the others leaves it alone, too.
        monkeypatch.setattr(groups_under_way, "MAX_WAIT_S", 1000.0)
        await stage.end(4)
        asking = asyncio.create_task(stage.under_way.done())
        await stage.settle()
        assert not asking.done()
        stage.under_way.stop(range(5, 20))
        assert list((await asking)[0].finished) == [4]

    asyncio.run(play())


def test_a_message_is_not_larger_than_it_needs_to_be(monkeypatch):
    monkeypatch.setattr(groups_under_way, "ENOUGH_BYTES", 1)

    async def play():
        stage = Stage()
        stage.under_way.begin(jobs(0, 1))
        await stage.settle()
        await stage.end(0, 1)
        return [list((await stage.under_way.done())[0].finished) for _ in range(2)]

    assert asyncio.run(play()) == [[0], [1]]


def test_closing_ends_what_is_under_way():
    async def play():
        stage = Stage()
        stage.under_way.begin(jobs(0))
        await stage.settle()
        await stage.under_way.close()
        assert stage.ends[0].cancelled()

    asyncio.run(play())
