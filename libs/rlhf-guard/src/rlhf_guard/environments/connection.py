"""The run's end of a connection: many requests in flight, each with a deadline. None waits when it has broken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from rlhf_core.problem import Problem, ProblemKind

from .frames import packed, read_frame
from .messages import MessageError, Plain, reported

CANCEL_LIMIT_S = 5.0
"""Time for the answer to a request that was cancelled; without one the other side hangs in code that does not wait."""


class RequestFailed(Exception):
    """The other side, or the connection, gave a problem instead of an answer."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


class Connection:
    """A connection to a worker or a server.

    Args:
        on_break: called once when the connection can be used no more, with the reason. It has to close the connection,
            and to return the problem of all requests that wait.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_break: Callable[[Exception], Awaitable[Problem]],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_break = on_break
        self._waiting: dict[int, asyncio.Future[Plain]] = {}
        self._next = 0
        self._broken: Problem | None = None
        self._hangs = False
        self._reading = asyncio.create_task(self._read())

    @property
    def usable(self) -> bool:
        """Whether requests can be sent."""
        return self._broken is None and not self._reading.done()

    async def call(self, op: str, limit_s: float, **fields: Any) -> Plain:
        """Return the answer to a request.

        If this is cancelled, or the time is up, the request is cancelled at the other side too.

        Raises:
            RequestFailed: a problem came instead, the time was up, or the connection broke.
            FrameError: the request cannot be sent.
        """
        call = self._next
        self._next += 1
        frame = packed({"op": op, "id": call, **fields})
        if not self.usable:
            raise RequestFailed(self._broken or _closed())
        answer: asyncio.Future[Plain] = asyncio.get_running_loop().create_future()
        self._waiting[call] = answer
        try:
            async with asyncio.timeout(limit_s):
                self._writer.write(frame)
                with suppress(OSError):  # The reading task finds the same, and says how it came.
                    await self._writer.drain()
                return await answer
        except TimeoutError as error:
            self._cancel(call)
            text = f"did not answer {op} within {limit_s:.3g} s"
            raise RequestFailed(Problem(kind=ProblemKind.TIMED_OUT, text=text)) from error
        except asyncio.CancelledError:
            self._cancel(call)
            raise

    async def close(self) -> None:
        """End the connection; requests that wait get a problem."""
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading

    def _cancel(self, call: int) -> None:
        """Tell the other side to give a request up, and break the connection if it does not."""
        answer = self._waiting.get(call)
        if answer is None or not self.usable:
            return
        self._writer.write(packed({"op": "cancel", "id": self._next, "call": call}))
        self._next += 1
        asyncio.get_running_loop().call_later(CANCEL_LIMIT_S, self._give_up, call)

    def _give_up(self, call: int) -> None:
        if call in self._waiting:
            self._hangs = True
            self._reading.cancel()

    async def _read(self) -> None:
        error: Exception
        try:
            while (answer := await read_frame(self._reader)) is not None:
                self._take(answer)
            error = EOFError()
        except (OSError, EOFError, ValueError) as broke:
            error = broke
        except asyncio.CancelledError:
            if not self._hangs:
                self._fail(_closed())
                raise
            error = TimeoutError(
                f"did not give a request up within {CANCEL_LIMIT_S:g} s, and was ended with all of its episodes"
            )
        self._fail(await self._on_break(error))

    def _take(self, message: Plain) -> None:
        answer = self._waiting.pop(message.get("id", -1), None)
        if answer is None:
            raise MessageError(f"an answer to a request {message.get('id')!r:.60} that nobody made")
        if answer.done():  # Its caller waits no more.
            return
        if "problem" in message:
            answer.set_exception(RequestFailed(reported(message["problem"])))
        elif isinstance(message.get("ok"), dict):
            answer.set_result(message["ok"])
        else:
            answer.set_exception(MessageError("an answer without a result"))
            raise MessageError("an answer without a result")

    def _fail(self, problem: Problem) -> None:
        self._broken = problem
        waiting, self._waiting = list(self._waiting.values()), {}
        for answer in waiting:
            if not answer.done():
                answer.set_exception(RequestFailed(problem))


def _closed() -> Problem:
    return Problem(kind=ProblemKind.DIED, text="was stopped, because the run ends")
