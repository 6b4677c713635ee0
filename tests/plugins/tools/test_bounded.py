"""Deadlines hold whatever a tool does; calls that run on are counted."""

import asyncio
import threading
import time

import pytest
from tests.deadlines import HANG_S

from rlhf_core import RolloutError
from rlhf_testing.errors import has_code
from rlhf_tools import bounded as module
from rlhf_tools.bounded import ABANDONED, Abandoned, bounded, on_thread


def wait_for(condition):
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_blocking_function_is_given_up_and_counted_until_it_ends():
    go = threading.Event()

    async def play():
        with pytest.raises(TimeoutError):
            await bounded(on_thread(lambda: go.wait(HANG_S), "stuck"), 0.05, "stuck")

    before = ABANDONED.count
    asyncio.run(play())

    assert ABANDONED.count == before + 1
    go.set()
    wait_for(lambda: ABANDONED.count == before)


def test_a_coroutine_that_swallows_its_cancellation_is_given_up():
    async def stubborn():
        for _ in range(3):
            try:
                await asyncio.sleep(HANG_S)
            except asyncio.CancelledError:
                continue

    async def play():
        with pytest.raises(TimeoutError):
            await bounded(stubborn(), 0.01, "stubborn")
        assert ABANDONED.count == before + 1
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for _ in range(3):
            for task in rest:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait(rest)

    before = ABANDONED.count
    asyncio.run(play())
    assert ABANDONED.count == before


def test_too_many_calls_that_run_on_are_an_error_of_the_run(monkeypatch):
    monkeypatch.setattr(module, "MAX_ABANDONED", 2)
    counted = Abandoned()
    counted.add("one")
    counted.add("two")

    with pytest.raises(RolloutError, match="3 calls", check=has_code("tool/runs-on")):
        counted.add("three")
    for _ in range(3):
        counted.remove()
    assert counted.count == 0


def test_a_result_and_an_exception_come_from_the_thread():
    def fail():
        raise KeyError("x")

    async def play():
        assert (
            await bounded(on_thread(threading.get_ident, "a"), HANG_S, "a") != threading.get_ident()
        )
        with pytest.raises(KeyError):
            await bounded(on_thread(fail, "b"), HANG_S, "b")

    asyncio.run(play())
