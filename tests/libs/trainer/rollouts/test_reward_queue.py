"""Groups that wait together are scored together; errors go to those who asked."""

import asyncio

import pytest

from rlhf_core.errors import RewardError
from rlhf_testing.errors import has_code
from rlhf_trainer.rollouts.pool import RewardQueue


class Scorer:
    def __init__(self):
        self.calls = []

    async def __call__(self, groups):
        self.calls.append(list(groups))
        for _ in range(10):  # what the test puts meanwhile arrives
            await asyncio.sleep(0)
        if "bad" in groups:
            raise RewardError("cannot")
        return [group.upper() for group in groups]


def test_what_arrives_during_a_call_goes_with_the_next():
    scorer = Scorer()

    async def play():
        queue = RewardQueue(scorer)
        first = asyncio.create_task(queue.put("a"))
        while not scorer.calls:
            await asyncio.sleep(0)
        rest = await asyncio.gather(*(queue.put(name) for name in "bc"))
        return [await first, *rest]

    assert asyncio.run(play()) == ["A", "B", "C"]
    assert scorer.calls == [["a"], ["b", "c"]]


def test_an_error_reaches_its_call_and_the_next_call_is_made():
    async def play():
        queue = RewardQueue(Scorer())
        with pytest.raises(RewardError, match="cannot", check=has_code("reward/failed")):
            await queue.put("bad")
        return await queue.put("good")

    assert asyncio.run(play()) == "GOOD"


def test_closing_ends_the_call_under_way():
    async def play():
        queue = RewardQueue(Scorer())
        waiting = asyncio.create_task(queue.put("a"))
        await asyncio.sleep(0)
        waiting.cancel()
        await queue.close()
        assert asyncio.all_tasks() - {asyncio.current_task()} <= {waiting}
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(play())
