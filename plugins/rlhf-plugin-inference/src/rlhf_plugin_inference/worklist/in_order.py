"""Work on many items at the same time, with results in the items' order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_AHEAD = 4
"""Results, in multiples of the items in work, that may wait for an earlier one."""
_POLL_S = 0.1


async def in_order(
    items: Iterable[ItemT],
    work: Callable[[ItemT], Awaitable[ResultT]],
    *,
    at_once: int,
    stopped: Callable[[], bool],
) -> AsyncIterator[ResultT]:
    """Yield the result of ``work`` for each item, in order.

    Results that are not yielded yet are lost when the iteration ends: by an error of ``work``, which is raised in its
    item's turn, or because of ``stopped``.

    Args:
        at_once: items in work at most; they are begun in order.
        stopped: asked several times a second; True ends the iteration before the next result.
    """
    free = asyncio.Semaphore(at_once)

    async def limited(item: ItemT) -> ResultT:
        async with free:
            return await work(item)

    coming = iter(items)
    begun: deque[asyncio.Task[ResultT]] = deque()
    try:
        while True:
            while len(begun) < at_once * _AHEAD:
                try:
                    item = next(coming)
                except StopIteration:
                    break
                begun.append(asyncio.create_task(limited(item)))
            if not begun or stopped():
                return
            if begun[0].done():
                yield begun.popleft().result()
            else:
                await asyncio.wait((begun[0],), timeout=_POLL_S)
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
