"""A crew: processes of one kind that can replace each other, such as engines or rollout workers.

The driver learns at once that a member has died. It gives the member's work to another member, and starts a new
process in its place until the number of allowed restarts is used up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from rlhf_core import RolloutError

from .dispatch import Dispatcher, Member
from .process import ActorProcess
from .supervisor import NodeLost, ProcessLost, Supervisor, all_of

log = logging.getLogger(__name__)


class Crew:
    """Starts, watches and replaces its members.

    Args:
        kind: name of a member in messages, such as ``engine``.
        launch: function that starts member ``index`` and returns once this member can serve.
        max_restarts: number of restarts in a run, over all members.
        option: name of the option that ``max_restarts`` comes from.
    """

    def __init__(
        self,
        kind: str,
        launch: Callable[[int], Awaitable[ActorProcess]],
        supervisor: Supervisor,
        *,
        max_restarts: int,
        option: str,
    ) -> None:
        self.dispatch = Dispatcher(supervisor, lose=self.lose, more=self._more)
        self._kind = kind
        self._launch = launch
        self._supervisor = supervisor
        self._max_restarts = self._restarts_left = max_restarts
        self._option = option
        self._restarting: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        """Event that is set, and replaced by a new one, whenever a member joins, leaves, or is given up."""
        self._followers: list[Callable[[], None]] = []
        self._last_loss: ProcessLost | None = None
        self._is_closed = False
        self._is_starting = False
        # A caller that waits for a member has to learn that the run cannot go on.
        supervisor.follow(self._announce)

    @property
    def members(self) -> list[Member]:
        """The members that serve now."""
        return self.dispatch.members

    @property
    def over(self) -> str | None:
        """The reason why no member will serve any more; None while a member serves or is being started."""
        if self.members or ((self._is_starting or self._restarting) and not self._is_closed):
            return None
        return (
            f"no {self._kind} is left; {self._last_loss or 'they were closed'}. "
            f"{self._max_restarts} restarts were allowed ({self._option})"
        )

    def follow(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever members join or leave."""
        self._followers.append(changed)

    async def start_all(self, num: int) -> None:
        """Start ``num`` members at the same time, and return once all of them serve.

        Raises:
            RLHFError: a member could not be started.
        """
        self._is_starting = True
        try:
            await all_of(self._add(index) for index in range(num))
        finally:
            self._is_starting = False

    async def wait_for_one(self, what: str) -> None:
        """Return once a member serves.

        Args:
            what: the work that waits for a member, in messages.

        Raises:
            RLHFError: no member will serve any more, or the run cannot go on.
        """
        while not self.members:
            await self._more(what)

    async def on_all(
        self, what: str, call: Callable[[Any], ray.ObjectRef[Any]], timeout_s: float
    ) -> dict[str, Any]:
        """Call every member, and return the results by the process's name, without the members that died."""

        async def one(member: Member) -> tuple[str, Any] | None:
            process = member.process
            try:
                reference = call(process.actor)
                return process.who, await self._supervisor.result(
                    reference, process.who, what, timeout_s
                )
            except ProcessLost as error:
                self.lose(member, error)
                return None

        results: list[tuple[str, Any] | None] = await all_of(
            one(member) for member in list(self.members)
        )
        return dict(result for result in results if result is not None)

    def close(self) -> None:
        """Restart no member from now on. The runtime ends the processes."""
        self._is_closed = True
        for task in self._restarting:
            task.cancel()
        self.members.clear()
        self._followers.clear()
        self._announce()

    async def _more(self, what: str) -> None:
        if self._supervisor.failure is not None:
            raise self._supervisor.failure
        if (over := self.over) is not None:
            raise RolloutError(f"{what}: {over}", code="ray/workers-lost")
        await self._changed.wait()

    async def _add(self, index: int) -> None:
        """Start member ``index``, and give it work from then on."""
        process = await self._launch(index)
        member = Member(process, index)
        self.members.append(member)
        self._supervisor.watch(
            process.actor.watch.remote(), process.who, lambda error: self.lose(member, error)
        )
        self._announce()

    def lose(self, member: Member, error: ProcessLost) -> None:
        """Remove a member that died or is of no use, end its process, and start another one in its place."""
        if member not in self.members:
            return
        self.members.remove(member)
        ray.kill(member.process.actor)
        self._restart(member.index, error)
        self._announce()

    def _restart(self, index: int, error: ProcessLost) -> None:
        self._last_loss = error
        if self._is_closed or self._supervisor.failure is not None or not self._restarts_left:
            return
        self._restarts_left -= 1
        log.warning("%s; restarting it (%d restarts left)", error, self._restarts_left)
        task = asyncio.get_running_loop().create_task(self._add(index))
        self._restarting.add(task)

        def finished(done: asyncio.Task[None]) -> None:
            self._restarting.discard(done)
            if not done.cancelled() and (failure := done.exception()) is not None:
                again = f"{self._kind} {index} could not be restarted: {failure}"
                if isinstance(failure, NodeLost):
                    # Ray starts processes on a lost machine until it notices the loss: this restart does not count.
                    self._restarts_left += 1
                self._restart(index, ProcessLost(again, code="ray/process-lost"))
                self._announce()

        task.add_done_callback(finished)

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        for follower in self._followers:
            follower()
