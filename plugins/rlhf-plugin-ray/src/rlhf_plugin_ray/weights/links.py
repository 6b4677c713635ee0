"""The driver's table of weight links: forms links between ranks and engines, and has ranks send weights by them.

The driver forms a link when an engine joins, and forms it again when the set of engines changes. As long as the set
stays the same, delivering a version is one call of each rank and one call of each engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlhf_core import RLHFError
from rlhf_weights import Invitation, LinkBroken, Place

from ..processes.process import ActorProcess
from ..processes.supervisor import all_of
from .routes import Route

Places = Sequence[Place]
Ask = Callable[..., Awaitable[Any]]
"""Coroutine function ``ask(process, method, *arguments)`` that returns the answer of a process within a deadline."""
SendWeights = Callable[[int, Sequence[Sequence[str]]], Coroutine[Any, Any, Mapping[str, str]]]
"""Coroutine function ``send(version, links)``: has every rank send a version by its links, given by name and rank.

Returns the reason for each link that broke, by the link's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The end of the weights' way to an engine that links can reach."""

    route: Route
    receivers: Places
    """Places of the engine's processes that receive weights."""


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A link from one rank to one or more engines."""

    name: str
    """Name that the rank and messages use for the link; no two links of a run have the same name."""
    route: Route
    engines: frozenset[ActorProcess]


class Links:
    """All weight links of a run.

    Args:
        ranks: processes of the policy's ranks.
        ask: calls a rank or an engine.
        send_weights: has every rank send.
        timeout_s: deadline of every single wait at the ends of a link.
    """

    def __init__(
        self, ranks: Sequence[ActorProcess], ask: Ask, send_weights: SendWeights, timeout_s: float
    ) -> None:
        self._ranks = ranks
        self._ask = ask
        self._send_weights = send_weights
        self._timeout_s = timeout_s
        self._num_links = 0
        self.standing: list[Link] = []
        """Links that are formed and not broken."""

    async def bring(
        self, version: int, engines: Mapping[ActorProcess, Destination]
    ) -> dict[ActorProcess, RLHFError]:
        """Form the links that are missing, send the weights by all links, and return the engines' errors.

        An engine without an error serves ``version``. An engine shares the error of its link, whichever end broke it.
        """
        errors: dict[ActorProcess, RLHFError] = {}
        links = []
        for route, members in _grouped(engines):
            link = self._standing(route, members) or await self._form(route, members, errors)
            if link is not None:
                links.append(link)
        await self._send(version, links, errors)
        return errors

    async def keep_only(self, engines: Iterable[ActorProcess]) -> None:
        """Drop every link to an engine that is not among ``engines``: a dead engine has no end of the link any more."""
        for link in [link for link in self.standing if not link.engines <= set(engines)]:
            await self._drop(link)

    def _standing(self, route: Route, engines: Mapping[ActorProcess, Places]) -> Link | None:
        wanted = (route, frozenset(engines))
        return next((one for one in self.standing if (one.route, one.engines) == wanted), None)

    async def _form(
        self,
        route: Route,
        engines: Mapping[ActorProcess, Places],
        errors: dict[ActorProcess, RLHFError],
    ) -> Link | None:
        """Form a link, which replaces the links that its engines had; return None if an end did not join.

        The errors of the ends go into ``errors``.
        """
        for old in [link for link in self.standing if link.engines & engines.keys()]:
            await self._drop(old)
        self._num_links += 1
        link = Link(f"{self._num_links} ({route.path})", route, frozenset(engines))
        sender = self._ranks[route.rank]
        machines = {place.machine for places in engines.values() for place in places}
        invitation: Invitation = await self._ask(
            sender,
            "open_link",
            link.name,
            route.path,
            sum(len(places) for places in engines.values()),
            machines == {route.machine},
            self._timeout_s,
        )
        self.standing.append(link)
        first, failed = 0, False

        async def join(process: ActorProcess, method: str, argument: Any) -> None:
            nonlocal failed
            try:
                await self._ask(process, method, argument)
            except RLHFError as error:
                failed = True
                if process is not sender:
                    errors[process] = error
                await self._give_up(link, error)

        joins = [join(sender, "connect_link", link.name)]
        for engine, places in engines.items():
            joins.append(join(engine, "join", replace(invitation, first=first)))
            first += len(places)
        await all_of(joins)
        if not failed:
            return link
        for engine in engines.keys() - errors.keys():
            errors[engine] = LinkBroken(
                f"{engine.who}: weight link {link.name} was not formed", code="weights/link-broken"
            )
        await self._drop(link)
        return None

    async def _send(
        self, version: int, links: Sequence[Link], errors: dict[ActorProcess, RLHFError]
    ) -> None:
        if not links:
            return

        async def receive(link: Link, engine: ActorProcess) -> None:
            try:
                await self._ask(engine, "receive", version)
            except RLHFError as error:
                errors[engine] = error
                await self._give_up(link, error)

        names = [
            [link.name for link in links if link.route.rank == rank]
            for rank in range(len(self._ranks))
        ]
        sending = asyncio.create_task(self._send_weights(version, names))
        try:
            await all_of(receive(link, engine) for link in links for engine in link.engines)
            broken = await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        for link in links:
            if link.name in broken or link.engines & errors.keys():
                for engine in link.engines - errors.keys():
                    errors[engine] = LinkBroken(
                        f"{engine.who}: {broken.get(link.name, 'broken')}",
                        code="weights/link-broken",
                    )
                await self._drop(link)

    async def _give_up(self, link: Link, error: RLHFError) -> None:
        """End the waits at all ends of a link, through its rank: an end that died cannot tell the others."""
        sender = self._ranks[link.route.rank]
        await self._ask(sender, "break_link", link.name, str(error))

    async def _drop(self, link: Link) -> None:
        if link in self.standing:
            self.standing.remove(link)
            await self._ask(self._ranks[link.route.rank], "close_link", link.name)


def _grouped(
    engines: Mapping[ActorProcess, Destination],
) -> list[tuple[Route, Mapping[ActorProcess, Places]]]:
    """Return the engines in sets that can share a link: NCCL refuses a process group with the same GPU twice."""
    sets: list[tuple[Route, dict[ActorProcess, Places], set[str]]] = []
    for engine, to in engines.items():
        gpus = {place.device for place in to.receivers if place.device is not None}
        for route, members, taken in sets:
            if route == to.route and (route.path == "memory" or not taken & gpus):
                members[engine] = to.receivers
                taken |= gpus
                break
        else:
            sets.append((to.route, {engine: to.receivers}, gpus))
    return [(route, members) for route, members, _ in sets]
