"""Requests that arrive together are computed together, and fail apart."""

import asyncio
import threading

import pytest
from tests.deadlines import HANG_S

from rlhf_plugin_reward_model.serving.batcher import Batcher, Full


def test_concurrent_requests_share_forward_passes():
    """While the model computes, what arrives gathers, and is computed together."""
    passes = []
    first = threading.Event()

    def score(sequences):
        passes.append(len(sequences))
        if len(passes) == 1:
            assert first.wait(HANG_S)
        return [float(len(one)) for one in sequences]

    async def requests():
        batcher = Batcher(score, batch_tokens=100, max_waiting=8)
        batcher.start()
        tasks = [asyncio.create_task(batcher.submit([[1] * 2]))]
        while not passes:
            await asyncio.sleep(0.001)
        tasks += [asyncio.create_task(batcher.submit([[1] * n, [1]])) for n in range(3, 7)]
        await asyncio.sleep(0)
        assert batcher.num_waiting == 8
        with pytest.raises(Full):
            await batcher.submit([[1]])
        tasks[1].cancel()
        await asyncio.sleep(0)
        first.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await batcher.close()
        return found

    found = asyncio.run(requests())

    assert passes == [1, 6]
    assert isinstance(found[1], asyncio.CancelledError)
    assert [found[0], *found[2:]] == [[2.0], [4.0, 1.0], [5.0, 1.0], [6.0, 1.0]]


def test_a_forward_pass_that_fails_costs_only_the_guilty_request():
    begun, go = threading.Event(), threading.Event()

    def score(sequences):
        begun.set()
        go.wait(HANG_S)
        if any(7 in one for one in sequences):
            raise MemoryError("too large")
        return [float(len(one)) for one in sequences]

    async def requests():
        batcher = Batcher(score, batch_tokens=100, max_waiting=8)
        batcher.start()
        tasks = [asyncio.create_task(batcher.submit([[token]])) for token in (1, 2, 7, 3)]
        await asyncio.to_thread(begun.wait, HANG_S)
        go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await batcher.close()
        return found

    found = asyncio.run(requests())

    assert [found[0], found[1], found[3]] == [[1.0]] * 3
    assert isinstance(found[2], MemoryError)


def test_who_waits_when_the_server_stops_is_told():
    begun, go = threading.Event(), threading.Event()

    def score(sequences):
        begun.set()
        go.wait(HANG_S)
        return [0.0]

    async def requests():
        batcher = Batcher(score, batch_tokens=1, max_waiting=8)
        batcher.start()
        tasks = [asyncio.create_task(batcher.submit([[1]])) for _ in range(3)]
        await asyncio.to_thread(begun.wait, HANG_S)
        await batcher.close()
        go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(requests())

    assert [str(one) for one in found] == ["the server stops"] * 3
