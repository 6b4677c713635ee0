"""Servers that episodes of an environment of verifiers share while they play: its own, and the policy's endpoint.

They start with the first episode of an event loop and end with the last one that plays, so that nothing is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from .asking import Asking
from .policy_server import PolicyServer
from .setting import TasksetSetting


class Stage:
    """An environment with its servers, for one event loop."""

    def __init__(self, setting: TasksetSetting) -> None:
        self._environment = setting.environment()
        self._changing = asyncio.Lock()
        self._players = 0
        self._ending = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._server = PolicyServer()

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Hold the servers up."""
        async with self._changing:
            if self._players == 0:
                await self._start()
            self._players += 1
        try:
            yield
        finally:
            self._players -= 1
            # Another episode may have come before the lock is free, and then nothing ends.
            await asyncio.shield(asyncio.ensure_future(self._end_if_empty()))

    async def play(self, task: Any, asking: Asking) -> Any:
        """Return the episode of a task, in which ``asking`` answers.

        Raises:
            RolloutError: the harness asked for what cannot be played in turns.
        """
        episode = asyncio.ensure_future(
            self._environment.run_episode(
                task,
                self._server.model(),
                on_trace=lambda trace: self._server.register(trace, asking),
            )
        )
        try:
            await asyncio.wait({episode, asking.refused}, return_when=asyncio.FIRST_COMPLETED)
            if asking.refused.done():
                raise asking.refused.result()
            return episode.result()
        finally:
            self._server.forget(asking)
            episode.cancel()
            await asyncio.wait({episode})

    async def _start(self) -> None:
        self._server = PolicyServer()
        await self._server.start()
        self._ending = asyncio.Event()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.ensure_future(self._serve(ready, self._ending))
        try:
            # A failure to start ends the task, and is the caller's.
            await asyncio.wait({ready, self._serving}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                await self._serving
        except BaseException:
            await self._stop()
            raise

    async def _serve(self, ready: asyncio.Future[None], ending: asyncio.Event) -> None:
        # Entered and left in one task, because the scopes of tool servers demand it.
        async with self._environment.serving():
            ready.set_result(None)
            await ending.wait()

    async def _end_if_empty(self) -> None:
        async with self._changing:
            if self._players == 0 and self._serving is not None:
                await self._stop()

    async def _stop(self) -> None:
        self._ending.set()
        serving, self._serving = self._serving, None
        if serving is not None:
            await asyncio.wait({serving})
        await self._server.stop()


_stages: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[TasksetSetting, Stage]] = (
    WeakKeyDictionary()
)


def stage_of(setting: TasksetSetting) -> Stage:
    """Return the stage of a setting in the running event loop."""
    stages = _stages.setdefault(asyncio.get_running_loop(), {})
    if setting not in stages:
        stages[setting] = Stage(setting)
    return stages[setting]
