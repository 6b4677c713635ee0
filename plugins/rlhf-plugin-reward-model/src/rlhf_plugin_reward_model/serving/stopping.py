"""The end of ``rlhf serve-rm``: what a signal ends at once, what may still finish, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, TypeVar

import uvicorn

from rlhf_trainer.inference import LEAVE_S, Interrupts, leave_within

ResultT = TypeVar("ResultT")

_UVICORN_S = 2.0
"""Seconds after ``ServerEnd.over`` in which answers are sent, before uvicorn cancels what is left."""


class ServerEnd:
    """The end of a server as its requests see it.

    Args:
        grace_s: seconds for requests in work to finish.
    """

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Say that the server ends."""
        self._asked.set()

    async def asked(self) -> None:
        """Return once the server ends: what is not in work by then is refused."""
        await self._asked.wait()

    async def over(self) -> None:
        """Return once the time of the requests in work is over."""
        await self._asked.wait()
        await asyncio.sleep(self.grace_s)


async def unless(work: Awaitable[ResultT], ends: Mapping[Exception, Awaitable[Any]]) -> ResultT:
    """Return the result of ``work``, which is cancelled if one of the others comes first.

    Args:
        ends: what is raised -> what it is raised after.
    """
    doing = asyncio.ensure_future(work)
    watches = {asyncio.ensure_future(end): error for error, end in ends.items()}
    try:
        await asyncio.wait({doing, *watches}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise next(error for watch, error in watches.items() if watch.done())
    finally:
        for task in (doing, *watches):
            task.cancel()
        await asyncio.gather(doing, *watches, return_exceptions=True)


class StoppableServer(uvicorn.Server):
    """A server that the first signal ends in ``ServerEnd.grace_s`` at most, and the second at once.

    Args:
        stop: told of the end.
        interrupts: entered; they have the signals in uvicorn's place.
    """

    def __init__(self, config: uvicorn.Config, stop: ServerEnd, interrupts: Interrupts) -> None:
        config.timeout_graceful_shutdown = round(stop.grace_s + _UVICORN_S)
        super().__init__(config)
        self._stop = stop
        self._interrupts = interrupts

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to ``interrupts``."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end; called ten times a second."""
        return await super().on_tick(counter) or self._interrupts.requested is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what is idle or half sent, and wait for what is in work."""
        leave_within(self._stop.grace_s + _UVICORN_S + LEAVE_S, 0)
        self._stop.ask()
        await super().shutdown(sockets)
