"""The groups that a rollout worker is playing, and the groups that have ended and wait for the driver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from rlhf_core.contracts import FinishedGroup, TokenColumns

from .group_messages import FailedGroup, GroupJob, GroupsDone, pack_done

FEW_SHARE = 1 / 8
"""Share of the groups in play below which ended groups wait for others, so that one message holds several groups. With
up to 8 groups in play no ended group waits, and neither does the last group."""
MAX_WAIT_S = 0.1
"""Longest time, in seconds, that an ended group waits for others."""
MAX_WAIT_SHARE = 0.05
"""Longest time that an ended group waits for others, as a share of the time that it took to play."""
ENOUGH_BYTES = 32 * 2**20
"""Bytes of tokens after which a message takes no further group. A message is in memory twice while it is packed."""


class GroupsUnderWay:
    """Plays groups concurrently, and returns each group once, together with the other groups that have ended by then.

    One message about several groups costs the driver about as much as a message about one group.

    Args:
        play: coroutine function that plays and scores one group.
    """

    def __init__(self, play: Callable[[GroupJob], Awaitable[FinishedGroup]]) -> None:
        self._play = play
        self._playing: dict[int, asyncio.Future[FinishedGroup]] = {}
        self._ended: dict[int, asyncio.Future[FinishedGroup]] = {}
        """Futures of the groups that have ended and were not returned yet, in the order in which they ended."""
        self._due = 0.0
        """Clock time (``time.perf_counter``, in seconds) at which the first ended group has waited long enough."""
        self._stopped: set[int] = set()
        """Numbers whose ``stop`` came before their ``begin``: Ray may reorder the calls of an actor."""
        self._changed = asyncio.Event()

    def begin(self, jobs: Sequence[GroupJob]) -> None:
        """Start to play the groups, except those that were stopped before."""
        started = time.perf_counter()
        for job in jobs:
            if job.number in self._stopped:
                self._stopped.remove(job.number)
                continue
            work = asyncio.ensure_future(self._play(job))
            self._playing[job.number] = work
            work.add_done_callback(partial(self._note, job.number, started))

    def stop(self, numbers: Iterable[int]) -> None:
        """Cancel groups that no caller waits for any more, and forget their results."""
        for number in numbers:
            if (work := self._playing.pop(number, None)) is not None:
                work.cancel()
            elif self._ended.pop(number, None) is None:
                self._stopped.add(number)
        self._changed.set()

    async def done(self) -> tuple[GroupsDone, TokenColumns | None]:
        """Wait until enough groups have ended, or the first of these has waited long enough, and return them."""
        while (wait_s := self._wait_s()) is None or wait_s > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
        finished: dict[int, FinishedGroup] = {}
        failed: dict[int, FailedGroup] = {}
        num_bytes = 0
        while self._ended and num_bytes < ENOUGH_BYTES:
            number = next(iter(self._ended))
            work = self._ended.pop(number)
            try:
                finished[number] = group = work.result()
            except (Exception, asyncio.CancelledError) as error:
                failed[number] = FailedGroup.of(error)
                continue
            if group.batch is not None:
                num_bytes += group.batch.tokens.read().num_bytes
        return pack_done(finished, failed)

    async def close(self) -> None:
        """Cancel all groups, and wait until they have ended."""
        playing = list(self._playing.values())
        self.stop(list(self._playing))
        await asyncio.gather(*playing, return_exceptions=True)

    def _note(self, number: int, started: float, work: asyncio.Future[FinishedGroup]) -> None:
        if self._playing.pop(number, None) is None:
            return  # ``stop`` has cancelled this group
        now = time.perf_counter()
        if not self._ended:
            self._due = now + min(MAX_WAIT_S, MAX_WAIT_SHARE * (now - started))
        self._ended[number] = work
        self._changed.set()

    def _wait_s(self) -> float | None:
        """Return the seconds until ``done`` returns if no further group ends; None if no group has ended."""
        if not self._ended:
            return None
        if len(self._ended) >= FEW_SHARE * len(self._playing):
            return 0.0
        return self._due - time.perf_counter()
