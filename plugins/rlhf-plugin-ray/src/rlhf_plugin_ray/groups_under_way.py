"""The groups that a rollout worker is playing, and those that it has played and not yet handed over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from rlhf_core.contracts import FinishedGroup, TokenColumns

from .group_messages import Failure, GroupJob, GroupsDone, pack_done

FEW_SHARE = 1 / 8
MAX_WAIT_S = 0.1
MAX_WAIT_SHARE = 0.05
"""While fewer have ended than this share of those under way, the first waits for others: at most so many seconds, and
at most this share of the time that it took. So of up to 8 groups none waits, nor does the last of any number."""
ENOUGH_BYTES = 32 * 2**20
"""Of tokens in one message, which are in memory twice while it is packed; the group that reaches it comes along."""


class GroupsUnderWay:
    """Plays groups side by side, and hands each over once, with all others that have ended by then. A message costs
    the driver as much as several groups in one."""

    def __init__(self, play: Callable[[GroupJob], Awaitable[FinishedGroup]]) -> None:
        self._play = play
        self._playing: dict[int, asyncio.Future[FinishedGroup]] = {}
        self._ended: dict[int, asyncio.Future[FinishedGroup]] = {}
        """In the order in which they ended."""
        self._due = 0.0
        """Clock time (``time.perf_counter``) at which the first of them has waited long enough."""
        self._stopped: set[int] = set()
        """To be stopped when they arrive: calls of an actor may overtake each other."""
        self._changed = asyncio.Event()

    def begin(self, jobs: Sequence[GroupJob]) -> None:
        """Start to play groups."""
        started = time.perf_counter()
        for job in jobs:
            if job.number in self._stopped:
                self._stopped.remove(job.number)
                continue
            work = asyncio.ensure_future(self._play(job))
            self._playing[job.number] = work
            work.add_done_callback(partial(self._note, job.number, started))

    def stop(self, numbers: Iterable[int]) -> None:
        """End groups that nobody waits for any more, and forget them."""
        for number in numbers:
            if (work := self._playing.pop(number, None)) is not None:
                work.cancel()
            elif self._ended.pop(number, None) is None:
                self._stopped.add(number)
        self._changed.set()

    async def done(self) -> tuple[GroupsDone, TokenColumns | None]:
        """Wait until groups have ended that are worth a message, and return them."""
        while (wait_s := self._wait_s()) is None or wait_s > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
        finished: dict[int, FinishedGroup] = {}
        failed: dict[int, Failure] = {}
        num_bytes = 0
        while self._ended and num_bytes < ENOUGH_BYTES:
            number = next(iter(self._ended))
            work = self._ended.pop(number)
            try:
                finished[number] = group = work.result()
            except (Exception, asyncio.CancelledError) as error:
                failed[number] = Failure.of(error)
                continue
            if group.batch is not None:
                num_bytes += group.batch.tokens.read().num_bytes
        return pack_done(finished, failed)

    async def close(self) -> None:
        """End all."""
        playing = list(self._playing.values())
        self.stop(list(self._playing))
        await asyncio.gather(*playing, return_exceptions=True)

    def _note(self, number: int, started: float, work: asyncio.Future[FinishedGroup]) -> None:
        if self._playing.pop(number, None) is None:
            return  # it was stopped
        now = time.perf_counter()
        if not self._ended:
            self._due = now + min(MAX_WAIT_S, MAX_WAIT_SHARE * (now - started))
        self._ended[number] = work
        self._changed.set()

    def _wait_s(self) -> float | None:
        """Seconds until what has ended is worth a message, if nothing changes; None: nothing has."""
        if not self._ended:
            return None
        if len(self._ended) >= FEW_SHARE * len(self._playing):
            return 0.0
        return self._due - time.perf_counter()
