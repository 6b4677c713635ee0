"""Waiting for a tool no longer than its deadline: a thread or coroutine that does not end by then is given up.

Nothing can stop a thread, and a coroutine may swallow its cancellation. Such ones are counted; when ``MAX_ABANDONED``
of them still run in this process, the next one is an error of the run instead of a slow leak.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from rlhf_core import RolloutError

ResultT = TypeVar("ResultT")

MAX_ABANDONED = 256
_GRACE_S = 1.0
"""Seconds that a cancelled coroutine has to end."""

_LOG = logging.getLogger(__name__)


class Slots:
    """A number of calls that may run at once in this process. Waiting for a slot is no part of a call's deadline.

    Everything that holds a slot has a deadline, so a waiting call gets one.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def free(self) -> asyncio.Semaphore:
        """Return the context in which a call holds a slot."""
        loop = asyncio.get_running_loop()
        return self._of_loop.setdefault(loop, asyncio.Semaphore(self._count))


THREADS = Slots(64)
"""Calls of blocking functions, each of which has a thread."""


class Abandoned:
    """Number of calls of this process that were given up and still run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def add(self, what: str) -> None:
        """Count one more.

        Raises:
            RolloutError: there are too many.
        """
        with self._lock:
            self.count += 1
            count = self.count
        _LOG.warning("%s did not end at its deadline and still runs (%d such calls)", what, count)
        if count > MAX_ABANDONED:
            raise RolloutError(
                f"{count} calls of tools still run after their deadlines, the last of them {what}; expected at most "
                f"{MAX_ABANDONED}. Give the tool a time limit of its own, or raise its timeout_s",
                code="tool/runs-on",
            )

    def remove(self) -> None:
        """Count one less, since it ended after all."""
        with self._lock:
            self.count -= 1


ABANDONED = Abandoned()


async def bounded(work: Coroutine[Any, Any, ResultT], timeout_s: float, what: str) -> ResultT:
    """Return the result of ``work``.

    Args:
        what: name of the work, for messages.

    Raises:
        TimeoutError: it took longer than ``timeout_s``; it was cancelled, and waited for no longer than a second.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        await _give_up(task, what)
        raise
    if done:
        return task.result()
    await _give_up(task, what)
    raise TimeoutError


async def _give_up(task: asyncio.Future[Any], what: str) -> None:
    """Cancel a task and wait for its end, but not for long.

    Raises:
        RolloutError: too many calls were given up.
    """
    task.cancel()
    await asyncio.wait({task}, timeout=_GRACE_S)
    if not task.done():
        task.add_done_callback(_ended_late)
        ABANDONED.add(what)
    elif isinstance(_seen(task), RolloutError):
        task.result()


def _ended_late(task: asyncio.Future[Any]) -> None:
    ABANDONED.remove()
    _seen(task)


def _seen(task: asyncio.Future[Any]) -> BaseException | None:
    """Return a finished task's exception, so that asyncio does not report it as never retrieved."""
    return None if task.cancelled() else task.exception()


async def on_thread(function: Callable[[], ResultT], what: str) -> ResultT:
    """Return the result of a function that may block, from a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[ResultT] = loop.create_future()
    context = contextvars.copy_context()
    state = threading.Lock()
    ended = given_up = False

    def settle(value: Any, error: BaseException | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        elif isinstance(error, StopIteration):
            result.set_exception(RuntimeError("the function raised StopIteration"))
        else:
            result.set_exception(error)

    def run() -> None:
        nonlocal ended
        value, error = None, None
        try:
            value = context.run(function)
        except BaseException as raised:
            error = raised
        with state:
            ended = True
            if given_up:
                ABANDONED.remove()
                return
        loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name=f"tool {what}", daemon=True).start()
    try:
        return await result
    except asyncio.CancelledError:
        with state:
            given_up = not ended
        if given_up:
            ABANDONED.add(what)
        raise
