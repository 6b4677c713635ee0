"""The pool: slots, order, taking, discarding, holding."""

import asyncio

import pytest
from tests.deadlines import HANG_S

from rlhf_core.contracts import Task, Uid
from rlhf_core.errors import RolloutError
from rlhf_testing.errors import has_code
from rlhf_trainer.rollouts.pool import Pool, play_all


class Episodes:
    """Groups that last as many turns of the event loop as their prompt's number."""

    def __init__(self):
        self.started = []
        self.playing = self.most = 0
        self.broken = None

    def compared(self, tasks):
        return frozenset()

    async def play(self, task, step, *, with_logprobs, ended):
        self.started.append(task.uid.prompt)
        self.playing += 1
        self.most = max(self.most, self.playing)
        try:
            for _ in range(task.uid.prompt):
                await asyncio.sleep(0)
            if task.uid.prompt == self.broken:
                raise RolloutError("broken")
        finally:
            self.playing -= 1
        ended(0)
        return task.uid.prompt

    async def close(self):
        pass


def tasks(*prompts):
    return [Task(uid=Uid(0, prompt)) for prompt in prompts]


def prompts(groups):
    return [group.task.uid.prompt for group in groups]


@pytest.fixture
def play():
    def run(work, **options):
        async def bounded():
            episodes = Episodes()
            pool = Pool(episodes, **options)
            async with asyncio.timeout(HANG_S):
                try:
                    await work(pool, episodes)
                finally:
                    await pool.close()
            assert episodes.playing == 0
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(bounded())

    return run


def test_no_more_groups_are_played_than_there_are_slots(play):
    async def work(pool, episodes):
        pool.add(tasks(3, 5, 4, 6, 2), 1)
        await pool.take(5)
        assert episodes.most == 2

    play(work, concurrency=2)


def test_a_group_that_ends_makes_room_for_the_next(play):
    async def work(pool, episodes):
        pool.add(tasks(30, 2, 3, 4), 1)
        assert prompts(await pool.take(3, among=4)) == [2, 3, 4]
        assert not pool.groups[0].is_complete

    play(work, concurrency=2)


def test_slots_are_given_in_the_order_asked_for_and_groups_kept_in_the_order_drawn(play):
    async def work(pool, episodes):
        pool.add(tasks(1, 2, 3), 1, order=[2, 0, 1])
        assert prompts(pool.groups) == [1, 2, 3]
        assert prompts(await pool.take(3)) == [1, 2, 3]
        assert episodes.started == [3, 1, 2]

    play(work, concurrency=1)


def test_taking_waits_for_the_oldest_or_for_the_first_among_more(play):
    async def work(pool, episodes):
        pool.add(tasks(20, 1, 2), 1)
        assert prompts(await pool.take(1, among=3)) == [1]
        assert prompts(await pool.take(1)) == [20]

    play(work)


def test_fewer_than_asked_for_are_all_that_there_are(play):
    async def work(pool, episodes):
        pool.add(tasks(1, 2), 1)
        assert prompts(await pool.take(5)) == [1, 2]
        assert await pool.take(5) == []

    play(work)


def test_a_held_pool_starts_nothing_and_settles_when_what_runs_has_ended(play):
    async def work(pool, episodes):
        pool.add(tasks(5, 6, 7), 1)
        while len(episodes.started) < 2:
            await asyncio.sleep(0)
        pool.hold()
        await pool.settled()
        assert episodes.started == [5, 6]
        assert pool.num_playing == 0
        pool.release(9)
        assert [group.version for group in await pool.take(3)] == [0, 0, 9]

    play(work, concurrency=2)


def test_a_pool_that_is_held_again_at_once_starts_nothing(play):
    async def work(pool, episodes):
        pool.hold()
        pool.add(tasks(1), 1)
        await asyncio.sleep(0)
        pool.release(1)
        pool.hold()
        await pool.settled()
        for _ in range(5):
            await asyncio.sleep(0)
        assert episodes.started == []
        pool.release(2)
        assert [group.version for group in await pool.take(1)] == [2]

    play(work)


def test_a_discarded_group_stops_and_gives_its_slot_back(play):
    async def work(pool, episodes):
        pool.add(tasks(10**9, 2), 1)
        await asyncio.sleep(0)
        await pool.discard(pool.groups[:1])
        assert prompts(await pool.take(2)) == [2]

    play(work, concurrency=1)


def test_a_failure_is_raised_by_who_waits_next(play):
    async def work(pool, episodes):
        episodes.broken = 2
        pool.add(tasks(10**9, 2), 1)
        with pytest.raises(RolloutError, match="broken", check=has_code("rollout/failed")):
            await pool.take(2)
        pool.hold()
        await pool.discard(pool.groups[:1])
        with pytest.raises(RolloutError, match="broken", check=has_code("rollout/failed")):
            await pool.settled()

    play(work)


def test_work_is_counted_while_something_is_played(play):
    async def work(pool, episodes):
        assert pool.work_done == (0, 0)
        pool.add(tasks(3), 1)
        await pool.take(1)
        seconds, _ = done = pool.work_done
        await asyncio.sleep(0.01)
        assert pool.work_done == done
        assert seconds > 0

    play(work)


def test_playing_all_returns_them_in_the_order_of_the_tasks():
    groups = asyncio.run(play_all(Episodes(), tasks(9, 1, 5), 0))

    assert groups == [9, 1, 5]
