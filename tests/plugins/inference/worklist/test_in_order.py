"""Work at the same time, results in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from rlhf_plugin_inference.worklist.in_order import in_order


def never():
    return False


async def collected(items, work, *, at_once=3, stopped=never):
    return [result async for result in in_order(items, work, at_once=at_once, stopped=stopped)]


@pytest.mark.parametrize("at_once", [1, 2, 7, 100])
def test_results_have_the_order_of_the_items_and_the_limit_holds(at_once):
    running = most = 0

    async def work(item):
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(random.Random(item).randrange(1, 20)):
            await asyncio.sleep(0)
        running -= 1
        return 10 * item

    results = asyncio.run(collected(range(50), work, at_once=at_once))

    assert results == [10 * item for item in range(50)]
    assert most == min(at_once, 50)


def test_an_error_is_raised_in_its_items_turn_and_ends_the_work():
    cancelled = []

    async def work(item):
        if item == 2:
            raise ValueError("two")
        try:
            await asyncio.sleep(0 if item < 2 else 3600)
        except asyncio.CancelledError:
            cancelled.append(item)
            raise
        return item

    async def main():
        async for result in in_order(range(9), work, at_once=4, stopped=never):
            seen.append(result)

    seen = []
    with pytest.raises(ValueError, match="two"):
        asyncio.run(main())
    assert seen == [0, 1]
    assert cancelled


def test_a_stop_ends_the_iteration_though_the_next_result_never_comes():
    asked = 0

    def stopped():
        nonlocal asked
        asked += 1
        return asked > 5

    async def work(item):
        await asyncio.sleep(0 if item < 2 else 3600)
        return item

    assert asyncio.run(collected(range(9), work, stopped=stopped)) == [0, 1]


def test_no_items_give_no_results():
    assert asyncio.run(collected([], None)) == []
