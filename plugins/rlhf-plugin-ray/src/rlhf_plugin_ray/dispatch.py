"""Sends work to whichever process of several has the least to do, and to another one when that one dies.

The same in the driver, which starts processes anew, and in rollout workers, which are told of the engines there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import ray

from .process import Process
from .supervisor import ProcessLost, Supervisor

DoneT = TypeVar("DoneT")


@dataclass(slots=True, eq=False)
class Member:
    """A process that serves."""

    process: Process
    index: int
    load: int = 0
    """Samples that it is working on for this dispatcher."""


class Dispatcher:
    """Holds the members that are alive; whoever owns it adds and removes them.

    Args:
        lose: is told of a member that died or missed its deadline, and takes it out.
        more: waits until ``members`` may have changed; it raises when none will come.
        first: the member that an idle dispatcher asks first. Several that differ in it do not all ask the same.
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
        self, call: Callable[[Any], ray.ObjectRef], *, what: str, size: int, timeout_s: float
    ) -> Any:
        """Return what ``call(actor)`` gives, by whichever member lives long enough.

        Args:
            what: as in "engine 0 did not answer ``what``".
            size: the load that it is, in samples.

        Raises:
            RLHFError: the process refused, or none is left.
        """
        return await self.give(
            lambda process: self._ask(process, call, what, timeout_s), what=what, size=size
        )

    async def give(
        self, work: Callable[[Process], Awaitable[DoneT]], *, what: str, size: int
    ) -> DoneT:
        """The same for work that is more than a call: done by the member with the least load, which is lost if
        that raises ``ProcessLost``."""
        while True:
            while not self.members:
                await self._more(what)
            member = min(self.members, key=self._order)
            member.load += size
            try:
                return await work(member.process)
            except ProcessLost as error:
                # Also one that is late: it is ended, so that it cannot answer twice.
                self._lose(member, error)
            finally:
                member.load -= size

    async def _ask(
        self, process: Process, call: Callable[[Any], ray.ObjectRef], what: str, timeout_s: float
    ) -> Any:
        reference = call(process.actor)
        try:
            return await self._supervisor.result(reference, process.who, what, timeout_s)
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise

    def _order(self, member: Member) -> tuple[int, bool, int]:
        return member.load, member.index < self._first, member.index
