"""Attempts: requests as clients repeat them. A retry gets the answer of the request that it repeats.

A request is a retry of an equal one before it if it has its idempotency key, if its client counts it as a retry, or if
the client of the other one went away before the answer came. Equal requests whose clients all wait are no retries: an
agent that asks several times at once wants several answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..dialects.problems import RequestProblem
from .calls import SampledCall

NUM_TURNS_OF_LOOP = 6
"""Turns of the event loop in which a connection that was closed is known to be lost, and its request given up."""


@dataclass(slots=True, eq=False)
class Attempt:
    """A request in work or answered."""

    digest: bytes
    """Digest of the request's path and body."""
    work: asyncio.Task[list[SampledCall]] = field(init=False)
    num_waiting: int = 0
    """Clients that wait for it."""
    is_delivered: bool = False
    """A client got the answer."""

    @property
    def is_abandoned(self) -> bool:
        """True when nobody waits and nobody got it."""
        return not self.num_waiting and not self.is_delivered

    @property
    def has_failed(self) -> bool:
        """True when the work ended without an answer, so that an equal request starts over."""
        work = self.work
        return work.done() and (work.cancelled() or work.exception() is not None)

    async def wait(self) -> list[SampledCall]:
        """Return the calls. The work goes on if the client that waits goes away."""
        self.num_waiting += 1
        try:
            calls = await asyncio.shield(self.work)
            self.is_delivered = True
            return calls
        except asyncio.CancelledError:
            if self.work.cancelled():
                raise RequestProblem(
                    "the episode is over", status=403, code="episode_over"
                ) from None
            raise
        finally:
            self.num_waiting -= 1


class Attempts:
    """All attempts of an episode."""

    def __init__(self) -> None:
        self.all: list[Attempt] = []
        self.num_retries = 0
        self._by_key: dict[str, Attempt] = {}
        self._by_digest: dict[bytes, list[Attempt]] = {}

    async def find_or_start(
        self,
        digest: bytes,
        *,
        key: str,
        is_retry: bool,
        start: Callable[[], Coroutine[Any, Any, list[SampledCall]]],
    ) -> Attempt:
        """Return the attempt that a request repeats, or a new one.

        Args:
            key: the request's idempotency key; empty: none.
            is_retry: the client says that it repeats a request.

        Raises:
            RequestProblem: the key belongs to another request.
        """
        found = self._known(digest, key, is_retry)
        if found is None and any(each.num_waiting for each in self._by_digest.get(digest, ())):
            # The client of an equal request may have closed its connection just before, which the loop reports later.
            for _ in range(NUM_TURNS_OF_LOOP):
                await asyncio.sleep(0)
            found = self._known(digest, key, is_retry)
        if found is not None:
            self.num_retries += 1
            return found
        attempt = Attempt(digest)
        attempt.work = asyncio.ensure_future(start())
        self.all.append(attempt)
        self._by_digest.setdefault(digest, []).append(attempt)
        if key:
            self._by_key[key] = attempt
        return attempt

    async def end(self) -> None:
        """Cancel what is in work, and mark the calls that nobody got."""
        for attempt in self.all:
            if not attempt.work.done():
                attempt.work.cancel()
        results = await asyncio.gather(
            *(attempt.work for attempt in self.all), return_exceptions=True
        )
        for attempt, result in zip(self.all, results, strict=True):
            if isinstance(result, list):
                mark(result, is_wanted=attempt.is_delivered)

    def delivered(self) -> Iterator[list[SampledCall]]:
        """Yield the calls of each reply that a client got, once the work has ended."""
        for attempt in self.all:
            if attempt.is_delivered:
                yield attempt.work.result()

    def _known(self, digest: bytes, key: str, is_retry: bool) -> Attempt | None:
        if key in self._by_key:
            attempt = self._by_key[key]
            if attempt.digest != digest:
                raise RequestProblem(
                    f"the idempotency key {key[:80]!r} belongs to another request of this episode",
                    status=422,
                    code="idempotency_conflict",
                )
            return None if attempt.has_failed else attempt
        for attempt in reversed(self._by_digest.get(digest, ())):
            if not attempt.has_failed and (is_retry or attempt.is_abandoned):
                return attempt
        return None


def mark(calls: Sequence[SampledCall], *, is_wanted: bool) -> None:
    """Note whether a client got the calls."""
    for call in calls:
        call.is_wanted = is_wanted
