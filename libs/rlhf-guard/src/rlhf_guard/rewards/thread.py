"""Worker thread of a reward in the run's own process, for rewards that need objects in the run's memory.

The interface is that of a worker process, with two differences that a thread cannot avoid. A call that hangs is
abandoned and not killed, so its thread goes on until the process ends. ``os._exit`` or a crash ends the run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rlhf_config.resolved import Selection
from rlhf_core.contracts.reward import Reward, RewardRequest
from rlhf_core.problem import Problem, ProblemKind, problem_of

from ..processes.marked_json import copied
from .checking import require_score, score_checked
from .outcome import RewardOutcome

_STOP_LIMIT_S = 0.2

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)


class WorkerThread:
    """Worker thread with a separate event loop, so that a blocking reward does not block generation."""

    def __init__(self, selection: Selection, name: str) -> None:
        self._selection = selection
        self._name = name
        self._reward: Reward | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether the reward is built: True between a successful ``start`` and ``stop``."""
        return self._reward is not None

    async def start(self, limit_s: float) -> Problem | None:
        """Build the reward in its thread; return the problem if that failed."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_serve, args=(self._loop,), name=f"reward {self._name}", daemon=True
        )
        self._thread.start()
        built = await self._within(limit_s, self._build())
        if isinstance(built, Problem):
            await self.stop()
            return built
        return None

    async def score(
        self, requests: Sequence[RewardRequest], limit_s: float
    ) -> list[RewardOutcome] | Problem:
        """Return the reward's answer. A thread that did not answer in time has been abandoned."""
        assert self._reward is not None
        copies = [replace(request, row=copied(request.row)) for request in requests]
        answer = await self._within(limit_s, score_checked(self._reward, copies))
        if isinstance(answer, Problem) and answer.kind is ProblemKind.TIMED_OUT:
            await self.stop()
        return answer

    async def stop(self) -> None:
        """End the thread if it is idle, else leave it behind."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = self._reward = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join, _STOP_LIMIT_S)
        if thread.is_alive():
            log.warning(
                "reward %s still runs in an abandoned thread, which isolate = false cannot stop",
                self._name,
            )

    async def _build(self) -> Problem | None:
        try:
            self._reward = require_score(self._selection.build())
        except BaseException as error:  # sys.exit() in a user's file is an error of that file
            return problem_of(error)
        return None

    async def _within(
        self, limit_s: float, work: Coroutine[Any, Any, ResultT]
    ) -> ResultT | Problem:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), limit_s)
        except TimeoutError:
            return Problem(
                kind=ProblemKind.TIMED_OUT,
                text=f"did not finish within {limit_s:.3g} s and was abandoned",
            )


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        _run_until_stopped(loop)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            # asyncio raises these out of the loop when a user's task raises them. The caller that awaits the task gets
            # the exception too, and reports it.
            continue
