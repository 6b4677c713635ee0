"""Agents that are Python functions or coroutines.

A function runs in a thread of its own. A coroutine runs on an event loop of its own thread, which all coroutines of the
process share: one that blocks it, by a client that is not asynchronous, delays other agents but never the endpoint that
it waits for. A thread cannot be stopped from outside; an agent that is out of time finds its endpoint closed, and its
thread is left to itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rlhf_core import ConfigError, first_error
from rlhf_core.code_reference import is_reference, parse

from .context import AgentContext
from .outcome import AgentFailure, AgentOutcome, read_outcome

LEAVE_S = 5.0
"""Seconds in which a coroutine that is cancelled has to end; then it is left to itself."""


def load_function(reference: str) -> Callable[[AgentContext], Any]:
    """Return the function that ``FILE.py:NAME`` or ``package.module:NAME`` names.

    Raises:
        ConfigError: there is none.
    """
    if is_reference(reference):
        found = parse(reference).load()
    else:
        module, colon, name = reference.partition(":")
        if not colon or not name.isidentifier():
            raise ConfigError(
                f"rollout.endpoint.agent is {reference!r}; expected FILE.py:NAME or package.module:NAME",
                code="agent/malformed-name",
            )
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"rollout.endpoint.agent {reference!r}: {error}", code="agent/not-loadable"
            ) from error
    if not callable(found):
        raise ConfigError(
            f"rollout.endpoint.agent {reference!r} is a {type(found).__name__}; expected a function or coroutine",
            code="agent/not-a-function",
        )
    made: Callable[[AgentContext], Any] = found
    return made


class FunctionAgent:
    """Plays episodes by calling a function.

    Args:
        function: takes an ``AgentContext``; a coroutine function, or a plain one.
    """

    def __init__(self, function: Callable[[AgentContext], Any]) -> None:
        self._function = function
        self._is_coroutine = inspect.iscoroutinefunction(function) or (
            not inspect.isroutine(function) and inspect.iscoroutinefunction(type(function).__call__)
        )
        self._loop: LoopThread | None = None

    async def play(self, context: AgentContext) -> AgentOutcome:
        """Return what the function says of the episode.

        Raises:
            AgentFailure: it raised, exited or cancelled itself, or returned no outcome.
        """
        if self._is_coroutine:
            if self._loop is None:
                self._loop = LoopThread()
            running = self._loop.start(_settled(self._function, context))
        else:
            running = _in_thread(lambda: self._function(context), context.uid)
        try:
            value = await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            running.cancel()
            raise
        if isinstance(value, _Raised):
            error = value.error
            if isinstance(error, Exception):
                error = first_error(error)  # of an agent that does several things at once
            raise AgentFailure(f"raised {type(error).__name__}: {error}") from error
        return read_outcome(value)

    async def close(self) -> None:
        """End the thread of the coroutines."""
        if self._loop is not None:
            loop, self._loop = self._loop, None
            await asyncio.to_thread(loop.close)


@dataclass(frozen=True, slots=True)
class _Raised:
    """Result of a function that raised: SystemExit and the like, as exceptions of a future, would end the run."""

    error: BaseException


async def _settled(function: Callable[[AgentContext], Any], context: AgentContext) -> Any:
    """Return what a coroutine function returns, or raised.

    Raises:
        asyncio.CancelledError: it was cancelled from outside, as an episode that is out of time.
    """
    try:
        return await function(context)
    except GeneratorExit:
        raise  # The loop is gone, and nobody waits.
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        return _Raised(error)


def _in_thread(call: Callable[[], Any], name: str) -> Future[Any]:
    """Run a function in a thread of its own, which does not keep the process alive."""
    result: Future[Any] = Future()

    def run() -> None:
        try:
            value = call()
        except BaseException as error:
            value = _Raised(error)
        with contextlib.suppress(Exception):  # the future was cancelled
            result.set_result(value)

    threading.Thread(target=run, name=f"agent {name}", daemon=True).start()
    return result


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="agents", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start a coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel what is left, wait a while for it, and end the loop."""
        self._is_closing = True
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LEAVE_S)

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            while not self._is_closing:
                # asyncio stops a loop at such an exception of any task, and the others would wait for ever.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=LEAVE_S))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
