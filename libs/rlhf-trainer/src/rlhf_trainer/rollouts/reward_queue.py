"""Queue of played groups before the rewards, which are asked while other groups are being played.

All groups that wait when a call ends go into the next call together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

GroupT = TypeVar("GroupT")
ScoredT = TypeVar("ScoredT")


class RewardQueue(Generic[GroupT, ScoredT]):
    """Collects groups while a call is under way, and sends them off with the next one.

    Args:
        score: returns one result per group, in order.
    """

    def __init__(self, score: Callable[[Sequence[GroupT]], Awaitable[Sequence[ScoredT]]]) -> None:
        self._score = score
        self._waiting: list[tuple[GroupT, asyncio.Future[ScoredT]]] = []
        self._calls: asyncio.Task[None] | None = None

    async def put(self, group: GroupT) -> ScoredT:
        """Return the result of ``score`` for this group, or raise the error of the call that the group was in."""
        scored: asyncio.Future[ScoredT] = asyncio.get_running_loop().create_future()
        self._waiting.append((group, scored))
        if self._calls is None or self._calls.done():
            self._calls = asyncio.create_task(self._work())
        return await scored

    async def close(self) -> None:
        """End the call that is under way."""
        if self._calls is not None:
            self._calls.cancel()
            await asyncio.gather(self._calls, return_exceptions=True)

    async def _work(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                results = await self._score([group for group, _ in waiting])
            except Exception as error:  # raised where the groups of this call are waited for
                for _, scored in waiting:
                    if not scored.done():
                        scored.set_exception(error)
                continue
            for (_, scored), result in zip(waiting, results, strict=True):
                if not scored.done():
                    scored.set_result(result)
