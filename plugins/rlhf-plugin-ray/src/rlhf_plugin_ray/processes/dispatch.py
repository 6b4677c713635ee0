"""A dispatcher: sends work to the least loaded of several processes, and to another process when that one dies.

The driver has dispatchers for engines and for rollout workers, and replaces processes that died. Every rollout worker
has a dispatcher for engines, and the driver tells it which engines serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import ray

from .process import ActorProcess
from .supervisor import ProcessLost, Supervisor

DoneT = TypeVar("DoneT")


@dataclass(slots=True, eq=False)
class Member:
    """A process that serves."""

    process: ActorProcess
    index: int
    """Number of the process among those of its kind, from 0; a replacement has the index of the process it replaces."""
    load: int = 0
    """Number of samples that the process is working on for this dispatcher."""


class Dispatcher:
    """Holds the members that are alive. The dispatcher's owner adds and removes members.

    Args:
        lose: called with a member that died or missed its deadline, and the reason; removes this member.
        more: waits until ``members`` may have changed; raises when no member will come any more.
        first: index of the member that an idle dispatcher asks first. Dispatchers in different processes have different
            values, so that they do not all ask the same member.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        lose: Callable[[Member, ProcessLost], None],
        more: Callable[[str], Awaitable[None]],
        first: int = 0,
    ) -> None:
        self.members: list[Member] = []
        self._supervisor = supervisor
        self._lose = lose
        self._more = more
        self._first = first

    async def send(
        self, call: Callable[[Any], ray.ObjectRef[Any]], *, what: str, size: int, timeout_s: float
    ) -> Any:
        """Return the result of ``call(actor)`` from the first member that lives long enough to give one.

        Args:
            what: name of the call in messages such as "engine 0 did not answer ``what``".
            size: load of the call, in samples.
            timeout_s: deadline for one member's answer; a member that misses the deadline counts as dead.

        Raises:
            RLHFError: the member raised an error, or no member is left.
        """
        return await self.give(
            lambda process: self._ask(process, call, what, timeout_s), what=what, size=size
        )

    async def give(
        self, work: Callable[[ActorProcess], Awaitable[DoneT]], *, what: str, size: int
    ) -> DoneT:
        """Return the result of ``work(process)``, done by the member with the least load.

        If ``work`` raises ``ProcessLost``, the member is lost, and another member does the work from its beginning.

        Raises:
            RLHFError: ``work`` raised another error, or no member is left.
        """
        while True:
            while not self.members:
                await self._more(what)
            member = min(self.members, key=self._order)
            member.load += size
            try:
                return await work(member.process)
            except ProcessLost as error:
                # A member that is only late is ended, too: its answer would otherwise come beside another member's.
                self._lose(member, error)
            finally:
                member.load -= size

    async def _ask(
        self,
        process: ActorProcess,
        call: Callable[[Any], ray.ObjectRef[Any]],
        what: str,
        timeout_s: float,
    ) -> Any:
        reference = call(process.actor)
        try:
            return await self._supervisor.result(reference, process.who, what, timeout_s)
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise

    def _order(self, member: Member) -> tuple[int, bool, int]:
        return member.load, member.index < self._first, member.index
