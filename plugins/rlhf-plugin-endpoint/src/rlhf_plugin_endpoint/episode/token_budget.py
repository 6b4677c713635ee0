"""Tokens that the policy may write in one episode, of which requests in work hold as many as they may write.

Without holding, requests that are answered at the same time would each get what is left, and write it several times.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ..dialects.problems import RequestProblem


class TokenBudget:
    """Count of the tokens that are left of an episode's, with those that requests hold.

    Args:
        most: ``max_tokens``; None: no limit.
        over: from why nothing is left to the problem of the request that wanted some.
    """

    def __init__(self, most: int | None, over: Callable[[str], RequestProblem]) -> None:
        self._most, self._over = most, over
        self._written = 0
        self._held = 0
        self._freed = asyncio.Event()

    def write(self, count: int) -> None:
        """Count tokens that the policy has written."""
        self._written += count

    def check(self, count: int) -> None:
        """Refuse more answers than there are tokens that nobody has written yet.

        Raises:
            RequestProblem: as ``over`` has it.
        """
        left = count if self._most is None else self._most - self._written
        if left >= count:
            return
        state = f"it has written its {self._most} tokens"
        if left > 0:
            state = f"it has {left} of its {self._most} tokens left, for {count} answers"
        raise self._over(f"{state}; for more raise --rollout.endpoint.max_tokens")

    @asynccontextmanager
    async def hold(self, each: int, count: int) -> AsyncIterator[int]:
        """Hold tokens for the answers of a request while it is in work, and give the largest number of each answer.

        A request waits while others hold what it would want beside them, since most answers are shorter than they may
        be; it gets less once nobody else holds any.

        Args:
            each: number of tokens of an answer that the request would take.
            count: number of its answers.

        Raises:
            RequestProblem: too few are left.
        """
        if self._most is None:
            yield each
            return
        while self._held and self._most - self._written - self._held < each * count:
            self._freed.clear()
            await self._freed.wait()
        self.check(count)
        granted = min(each, (self._most - self._written) // count)
        self._held += granted * count
        try:
            yield granted
        finally:
            self._held -= granted * count
            self._freed.set()
