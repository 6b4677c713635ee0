"""Brings the policy's weights to engines: by links where they lead there, else by the object store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from rlhf_core import RLHFError, RolloutError
from rlhf_core.contracts import WeightSync
from rlhf_core.weights import Place

from .config import RayRuntimeConfig
from .links import Destination, Links
from .packed_weights import Published
from .process import Process
from .rank_links import Offer, require_planned
from .role import RayRole
from .supervisor import ProcessLost, Supervisor, all_of
from .weight_routes import route_to, wants_direct

log = logging.getLogger(__name__)

GIB = 2**30
MIB = 2**20
MARGIN_S = 15.0
"""What the driver waits longer than the ends of a link do, so that their reason arrives first."""


class WeightDelivery:
    """Knows the ways to the engines. One delivery at a time."""

    def __init__(self, role: RayRole, supervisor: Supervisor, config: RayRuntimeConfig) -> None:
        self._role = role
        self._supervisor = supervisor
        self._config = config
        self._offers: Sequence[Offer] = ()
        self._engines: dict[Process, Destination | None] = {}
        """None: by the object store."""
        self._fresh: set[Process] = set()
        """Engines without weights so far: some start only when they get them."""
        self.links = Links(role.ranks, self._ask, role.send_weights, config.sync_timeout_s)
        self._published: Published | None = None
        self._changes = role.changes
        """Of the role's weights, when those that are served were taken."""
        self._lock = asyncio.Lock()
        self._news = asyncio.Event()
        """Set, and replaced, with each update."""
        self.version = 0
        """Of the weights that engines are given, or have."""
        self.served = 0
        """Of those that all engines have: while they are given newer ones, requests can count on these alone."""
        self.direct = False
        """Engines get weights by links, where there is a way."""

    async def prepare(self) -> None:
        """Ask the ranks what they have, and where."""
        async with self._role.held():
            self._offers = await self._role.plan_weights(self._config.bucket_mib * MIB)
        require_planned(self._offers)
        self.direct = wants_direct(self._config.weights, self._places)

    def enroll(self, engine: Process, receivers: Sequence[Place]) -> None:
        """Choose the way to an engine that was built.

        Raises:
            ConfigError: there is none of the chosen kind.
        """
        choice = self._config.weights if self.direct else "store"
        route = route_to(receivers, self._places, choice, engine.who)
        to = None if route is None else Destination(route=route, receivers=receivers)
        self._engines[engine] = to
        self._fresh.add(engine)
        way = "the object store" if route is None else f"{route.path} of policy rank {route.rank}"
        log.info("%s gets weights by %s", engine.who, way)

    async def update(
        self, version: int, serving: Callable[[], Sequence[Process]]
    ) -> tuple[WeightSync, dict[Process, ProcessLost]]:
        """Have the engines serve what the ranks hold now, as ``version``; return also those that are lost.

        Args:
            serving: returns the engines. It is asked once ``bring`` cannot be under way, or an engine that joins just
                now would be left with older weights.
        """
        async with self._lock, self._role.held():
            begin = time.perf_counter()
            engines = serving()
            self.version, self._published, self._changes = version, None, self._role.changes
            await self.links.keep_only(engines)
            failed = await self._deliver(engines)
            self.served = version
            self._news.set()
            self._news = asyncio.Event()
            seconds = time.perf_counter() - begin
        sync = WeightSync(num_bytes=self._offers[0].num_bytes, seconds=seconds)
        log.info(
            "weights of version %d: %.3f GiB to %d engines in %.3f s by %s",
            version,
            sync.num_bytes / GIB,
            len(engines) - len(failed),
            seconds,
            ", ".join(sorted({self._way(engine) for engine in engines})) or "nothing",
        )
        return sync, failed

    async def bring(self, engine: Process) -> int:
        """Give an engine that joins the weights that are served, and return their version.

        Raises:
            RLHFError: it could not take them, or they are gone: the trainer has changed them since, no other engine has
                them, and no update came within the deadline.
        """
        while True:
            async with self._lock, self._role.held():
                kept = self._published is not None and self._engines[engine] is None
                if kept or self._role.changes == self._changes:
                    failed = await self._deliver([engine])
                    if failed:
                        raise failed[engine]
                    self._fresh.discard(engine)
                    return self.version
                news = self._news
            try:
                async with asyncio.timeout(self._config.sync_timeout_s):
                    await news.wait()
            except TimeoutError as error:
                raise RolloutError(
                    f"{engine.who} waited {self._config.sync_timeout_s:g} s for new weights: those of version "
                    f"{self.version} are gone, since the trainer goes on with its own. --runtime.ray.weights store "
                    "keeps them"
                ) from error

    async def _deliver(self, engines: Sequence[Process]) -> dict[Process, ProcessLost]:
        linked = {engine: to for engine in engines if (to := self._engines[engine]) is not None}
        stored = [engine for engine in engines if engine not in linked]
        failed = await self._by_store(stored) if stored else {}
        errors = await self.links.bring(self.version, linked)
        # Whose fault it was shows when each is alone.
        for engine in [engine for engine, error in errors.items() if not _is_lost(error)]:
            log.warning("%s; trying it alone", errors.pop(engine))
            errors |= await self.links.bring(self.version, {engine: linked[engine]})
        return failed | {engine: _as_lost(engine, error) for engine, error in errors.items()}

    async def _by_store(self, engines: Sequence[Process]) -> dict[Process, ProcessLost]:
        if self._published is None:
            self._published = await self._role.publish(self.version)
        failed: dict[Process, ProcessLost] = {}

        async def take(engine: Process) -> None:
            try:
                await self._ask(engine, "take", self._published)
            except ProcessLost as error:
                failed[engine] = error

        await all_of(take(engine) for engine in engines)
        return failed

    async def _ask(self, process: Process, method: str, *arguments: Any) -> Any:
        """Make a call, of which an error that ends the run is raised as such.

        Raises:
            RLHFError: what the process raised; ``ProcessLost`` if it died.
        """
        reference: ray.ObjectRef = getattr(process.actor, method).remote(*arguments)
        timeout_s = self._config.sync_timeout_s + MARGIN_S
        if process in self._fresh:
            timeout_s += self._config.setup_timeout_s
        try:
            return await self._supervisor.result(reference, process.who, method, timeout_s)
        except ProcessLost as error:
            if process in self._role.ranks:
                raise self._role.lose(error) from error.__cause__
            raise

    @property
    def _places(self) -> list[Place]:
        return [offer.place for offer in self._offers]

    def _way(self, engine: Process) -> str:
        to = self._engines[engine]
        return "store" if to is None else to.route.path


def _is_lost(error: RLHFError) -> bool:
    return isinstance(error, ProcessLost)


def _as_lost(engine: Process, error: RLHFError) -> ProcessLost:
    if isinstance(error, ProcessLost):
        return error
    return ProcessLost(f"{engine.who} could not take over weights: {error}")
