"""Coroutines that run at the same time, none of which outlives the call."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def all_at_once(work: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Run coroutines at the same time and return their results in order.

    After the first error the others are cancelled and awaited, and that error is raised.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
