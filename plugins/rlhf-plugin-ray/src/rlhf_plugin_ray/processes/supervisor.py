"""The supervisor of waits for actors: every wait has a deadline and a name, and ends when the run cannot go on.

An actor's error is raised again as an error class of ``rlhf_core``, with the name of the process in its message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rlhf_core import RLHFError, StorageError
from rlhf_core.storage import is_full, reason_of

AnswerT = TypeVar("AnswerT")

POLL_S = 0.05
"""Seconds between two looks at whether the run has failed."""
KILLED = "connection error code 2"
"""Ray's words for a process whose connection broke off."""
NODE_DIED = "node has died"
"""Ray's words for a process whose machine is gone."""


class ProcessLost(RLHFError):
    """A process died, or did not answer within its deadline."""


class NodeLost(ProcessLost):
    """A process died because its machine is gone, or could not start there for the same reason."""


class Supervisor:
    """Knows every pending wait, and ends all waits when a process is lost that cannot be replaced."""

    def __init__(self) -> None:
        self._pending: set[asyncio.Future[Any]] = set()
        self._watches: set[asyncio.Task[None]] = set()
        self._followers: list[Callable[[], None]] = []
        self.failure: RLHFError | None = None
        """Reason why the run cannot go on; None while it can."""

    async def result(
        self, reference: ray.ObjectRef[Any], who: str, what: str, timeout_s: float
    ) -> Any:
        """Return the result of a call.

        Args:
            reference: Ray's reference to the result.
            who: name of the process in messages.
            what: name of the call in messages such as "policy rank 0 did not answer train_step".
            timeout_s: deadline.

        Raises:
            ProcessLost: the process died or missed the deadline.
            RLHFError: the error that the process raised; of the same class if it was an ``RLHFError``.
        """
        if self.failure is not None:
            raise self.failure
        return await self.wait(future_of(reference), who, what, timeout_s)

    async def wait(
        self, future: asyncio.Future[AnswerT], who: str, what: str, timeout_s: float
    ) -> AnswerT:
        """Return the result of a future; arguments and errors are those of ``result``.

        For futures that are not the answer of one call, such as one of several results in a message.
        """
        if self.failure is not None:
            raise self.failure
        self._pending.add(future)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        # RayTaskError comes first: Ray gives an actor's error also the class of its cause, such as TimeoutError.
        except RayTaskError as error:
            raise translated(error, who) from error
        except RayError as error:
            lost = NodeLost if NODE_DIED in str(error) else ProcessLost
            problem = f"{who} died during {what}: {_reason(error)}"
            raise lost(problem, code="ray/process-lost") from error
        except TimeoutError as error:
            raise ProcessLost(
                f"{who} did not answer {what} within {timeout_s:g} s; it may hang, or the deadline "
                "(runtime.ray.*_timeout_s) is too short",
                code="ray/process-lost",
            ) from error
        finally:
            self._pending.discard(future)

    def watch(
        self, reference: ray.ObjectRef[None], who: str, on_death: Callable[[ProcessLost], object]
    ) -> None:
        """Call ``on_death`` with the reason when a process dies.

        Args:
            reference: reference to the result of ``Actor.watch``, which never returns while the process lives.
            who: name of the process in messages.
        """

        async def wait() -> None:
            try:
                await future_of(reference)
            except RayError as error:
                on_death(ProcessLost(f"{who} died: {_reason(error)}", code="ray/process-lost"))

        task = asyncio.get_running_loop().create_task(wait())
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    def follow(self, failed: Callable[[], None]) -> None:
        """Call ``failed`` when the run cannot go on, to wake callers that wait for something else than an answer."""
        self._followers.append(failed)

    def fail(self, error: RLHFError) -> None:
        """End every pending and every later wait with ``error``."""
        if self.failure is not None:
            return
        self.failure = error
        for follower in self._followers:
            follower()
        for future in self._pending:
            if not future.done():
                future.set_exception(error)

    async def cause_of(self, error: RLHFError, patience_s: float) -> RLHFError:
        """Return the reason why the run cannot go on, if it is known within ``patience_s`` seconds, else ``error``.

        A process that waits for a dead process may fail with an error of its own before the driver knows of the death.
        """
        give_up = time.monotonic() + patience_s
        while self.failure is None and time.monotonic() < give_up:
            await asyncio.sleep(POLL_S)
        return self.failure or error

    def close(self) -> None:
        """Stop watching all processes."""
        for task in self._watches:
            task.cancel()


async def all_of(waits: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Wait for all coroutines, and return their results in order.

    The first coroutine that fails cancels the others, which may be waiting for it, and its error is raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wait) for wait in waits]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def translated(error: RayTaskError, who: str) -> RLHFError:
    """Return an actor's error as an ``RLHFError`` that names the process, with the remote traceback as a note.

    A disk without room is a ``StorageError`` wherever it was met.
    """
    cause = error.cause
    if isinstance(cause, RLHFError):
        out = cause.with_text(f"{who}: {cause}")
    elif is_full(cause):
        out = StorageError(f"{who}: {reason_of(cause)}")
    else:
        out = RLHFError(f"{who} failed: {type(cause).__name__}: {cause}", code="ray/process-failed")
    out.add_note(str(error))  # Ray's text of the remote traceback
    return out


def _reason(error: RayError) -> str:
    """Return the part of Ray's message that gives the reason of an error, in one line."""
    if isinstance(error, RayActorError):
        known = ("exit type", "exit detail", "killed", "Node", "node")
        lines = [line.strip() for line in str(error).splitlines()]
        if known_lines := [line for line in lines if any(word in line for word in known)]:
            reason = " ".join(known_lines).partition(" Some common causes")[0]
            if KILLED in reason:
                reason += " It was killed, by hand or by the system for want of memory (see dmesg), or it crashed."
            return reason
    return " ".join(str(error).split())


def future_of(reference: ray.ObjectRef[Any]) -> asyncio.Future[Any]:
    """Return a future of this event loop with a reference's result. ``Supervisor.fail`` may set an error before."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(done: Future[Any]) -> None:
        if future.done():
            return
        error = done.exception()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())

    def notify(done: Future[Any]) -> None:
        # RuntimeError: the event loop is closed, so no caller waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, done)

    reference.future().add_done_callback(notify)
    return future
