"""Environments that compute, or wait, without giving the event loop back: all other episodes of the process stand still
meanwhile, and so does generation in the process. Nothing fails, so a line of the log has to say it.

The seconds between two waits of a call are measured, so the line names the one that held the loop. A thread looks at a
call that has not come to its next wait, since it may never.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

HELD_S = 5.0
"""Seconds for which an environment may hold the loop, at once or added up within ``SPAN_S``, before it is named."""
SPAN_S = 60.0
LEAST_S = 0.05
"""Shortest time that is added up: what all environments take that compute a little is none."""
_LOOKS_S = 1.0
_IDLE_LOOKS = 30
"""Looks without a call after which the thread ends; the next call starts another one."""

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)


class LoopWatch:
    """Watch over the event loops of a process. Each environment is named once.

    Args:
        clock: time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[int, tuple[str, str, float]] = {}
        """Thread -> environment, call and beginning of what runs in it until its next wait."""
        self._added: dict[str, tuple[float, float]] = {}
        """Environment -> beginning of a span, and the seconds for which it held the loop since then."""
        self._told: set[str] = set()
        self._thread: threading.Thread | None = None

    async def run(
        self, name: str, call: str, method: Callable[..., Awaitable[ResultT]], *arguments: object
    ) -> ResultT:
        """Return what a method of an environment returns.

        Args:
            name: the environment's name in the run.
            call: the method's name, for the line.
        """
        if name in self._told:
            return await method(*arguments)

        async def called() -> ResultT:
            return await method(*arguments)

        result: ResultT = await _Pieces(called(), self, (name, call))
        return result

    def begin(self, name: str, call: str) -> None:
        """Note that code of an environment runs in this thread from now on."""
        self._running[threading.get_ident()] = (name, call, self._clock())
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look, name="loop watch", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Note that it waits, or is over."""
        name, call, began = self._running.pop(threading.get_ident())
        now = self._clock()
        held = now - began
        if held < LEAST_S:
            return
        start, total = self._added.get(name, (began, 0.0))
        if now - start > SPAN_S:
            start, total = began, 0.0
        self._added[name] = (start, total + held)
        if total + held >= HELD_S:
            self._tell(name, call, total + held)

    def look(self) -> None:
        """Name the environments that have held a loop for too long and still do."""
        for name, call, began in list(self._running.values()):
            if self._clock() - began >= HELD_S:
                self._tell(name, call, self._clock() - began)

    def _look(self) -> None:
        idle, never = 0, threading.Event()
        while idle < _IDLE_LOOKS:
            never.wait(_LOOKS_S)
            idle = 0 if self._running else idle + 1
            self.look()

    def _tell(self, name: str, call: str, held: float) -> None:
        if name in self._told:
            return
        self._told.add(name)
        log.warning(
            "environment %s has held this process for %.1f s, now in %s, without waiting: no other episode goes on "
            "meanwhile. Use asynchronous calls in it (await), or let it run in processes of its own: "
            "--env.%s.isolation process",
            name,
            held,
            call,
            name,
        )


class _Pieces:
    """Awaitable that takes the time of each piece of a coroutine between two waits."""

    def __init__(self, work: Any, watch: LoopWatch, who: tuple[str, str]) -> None:
        self._work, self._watch, self._who = work, watch, who

    def __await__(self) -> Generator[Any, Any, Any]:
        given: BaseException | None = None
        while True:
            self._watch.begin(*self._who)
            try:
                waits = self._work.send(None) if given is None else self._work.throw(given)
            except StopIteration as end:
                return end.value
            finally:
                self._watch.end()
            given = None
            try:
                yield waits
            except GeneratorExit:
                self._work.close()
                raise
            except (Exception, asyncio.CancelledError) as error:
                given = error


WATCH = LoopWatch()
"""The watch of this process."""
