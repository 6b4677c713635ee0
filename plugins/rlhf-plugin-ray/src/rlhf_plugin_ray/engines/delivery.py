"""Delivery of the policy's weights to the engines: by a link where one can be formed, else by the object store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from rlhf_core import RLHFError, RolloutError
from rlhf_core.contracts import WeightSync
from rlhf_weights import Place

from ..config import RayRuntimeConfig
from ..processes.process import ActorProcess
from ..processes.supervisor import ProcessLost, Supervisor, all_of
from ..ranks.role import RayRole
from ..weights.links import Destination, Links
from ..weights.packed_weights import Published
from ..weights.rank_links import Offer, require_planned
from ..weights.routes import route_to, wants_direct

log = logging.getLogger(__name__)

GIB = 2**30
MIB = 2**20
MARGIN_S = 15.0
"""Seconds that the driver waits longer than the ends of a link, so that an end's own error arrives first."""


class WeightDelivery:
    """Knows the route to every engine, and does one delivery at a time.

    Args:
        role: the policy, whose weights are delivered.
    """

    def __init__(self, role: RayRole, supervisor: Supervisor, config: RayRuntimeConfig) -> None:
        self._role = role
        self._supervisor = supervisor
        self._config = config
        self._offers: Sequence[Offer] = ()
        self._engines: dict[ActorProcess, Destination | None] = {}
        """Destination of each engine; None if the engine gets weights by the object store."""
        self._fresh: set[ActorProcess] = set()
        """Engines that have had no weights yet. The first delivery may take longer: some engines start only then."""
        self.links = Links(role.ranks, self._ask, role.send_weights, config.sync_timeout_s)
        self._published: Published | None = None
        self._changes = role.changes
        """The role's ``changes`` when the weights of ``version`` were taken from its ranks."""
        self._lock = asyncio.Lock()
        self._news = asyncio.Event()
        """Event that is set, and replaced by a new one, by every ``update``."""
        self.version = 0
        """Version of the newest weights, which the engines have or are being given."""
        self.served = 0
        """Version that all engines have at least. A request asks for this version, since an engine may not have a newer
        one yet."""
        self.direct = False
        """True if engines get weights by links wherever a link can be formed."""

    async def prepare(self) -> None:
        """Ask every rank for the size and the device of its weights, and choose between links and the object store.

        Raises:
            RLHFError: a rank failed, or the ranks have different weights.
        """
        async with self._role.held():
            self._offers = await self._role.plan_weights(self._config.bucket_mib * MIB)
        require_planned(self._offers)
        self.direct = wants_direct(self._config.weights, self._places)

    def enroll(self, engine: ActorProcess, receivers: Sequence[Place]) -> None:
        """Choose the route to an engine that was built.

        Args:
            receivers: places of the engine's processes that receive weights; empty if links cannot reach the engine.

        Raises:
            ConfigError: ``runtime.ray.weights`` chooses a kind of route that does not lead to this engine.
        """
        choice = self._config.weights if self.direct else "store"
        route = route_to(receivers, self._places, choice, engine.who)
        to = None if route is None else Destination(route=route, receivers=receivers)
        self._engines[engine] = to
        self._fresh.add(engine)
        way = "the object store" if route is None else f"{route.path} of policy rank {route.rank}"
        log.info("%s gets weights by %s", engine.who, way)

    async def update(
        self, version: int, serving: Callable[[], Sequence[ActorProcess]]
    ) -> tuple[WeightSync, dict[ActorProcess, ProcessLost]]:
        """Make the engines serve the weights that the ranks hold now, as ``version``.

        Returns the size and duration of the delivery, and for every engine that was lost the reason.

        Args:
            serving: function that returns the engines. ``update`` calls this function when no ``bring`` is under way:
                otherwise an engine that joins at this moment would be left with older weights.
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

    async def bring(self, engine: ActorProcess) -> int:
        """Give a joining engine the weights of the newest version, and return this version.

        The weights are gone if the trainer has changed them and the object store does not hold them. ``bring`` then
        waits for the next ``update``.

        Raises:
            RLHFError: the engine could not take the weights, or they are gone and no ``update`` came within the
                deadline.
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
                    "keeps them",
                    code="engine/other-weights",
                ) from error

    async def _deliver(self, engines: Sequence[ActorProcess]) -> dict[ActorProcess, ProcessLost]:
        linked = {engine: to for engine in engines if (to := self._engines[engine]) is not None}
        stored = [engine for engine in engines if engine not in linked]
        failed = await self._by_store(stored) if stored else {}
        errors = await self.links.bring(self.version, linked)
        # Engines that share a link fail together; a link to each engine alone shows which engine is at fault.
        for engine in [
            engine for engine, error in errors.items() if not isinstance(error, ProcessLost)
        ]:
            log.warning("%s; trying it alone", errors.pop(engine))
            errors |= await self.links.bring(self.version, {engine: linked[engine]})
        return failed | {engine: _as_lost(engine, error) for engine, error in errors.items()}

    async def _by_store(self, engines: Sequence[ActorProcess]) -> dict[ActorProcess, ProcessLost]:
        if self._published is None:
            self._published = await self._role.publish(self.version)
        failed: dict[ActorProcess, ProcessLost] = {}

        async def take(engine: ActorProcess) -> None:
            try:
                await self._ask(engine, "take", self._published)
            except ProcessLost as error:
                failed[engine] = error

        await all_of(take(engine) for engine in engines)
        return failed

    async def _ask(self, process: ActorProcess, method: str, *arguments: Any) -> Any:
        """Return the result of a call of an engine or a rank. The loss of a rank ends the run.

        Raises:
            RLHFError: the error that the process raised; ``ProcessLost`` if the process died.
        """
        reference: ray.ObjectRef[Any] = getattr(process.actor, method).remote(*arguments)
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

    def _way(self, engine: ActorProcess) -> str:
        to = self._engines[engine]
        return "store" if to is None else to.route.path


def _as_lost(engine: ActorProcess, error: RLHFError) -> ProcessLost:
    if isinstance(error, ProcessLost):
        return error
    return ProcessLost(
        f"{engine.who} could not take over weights: {error}", code="ray/process-lost"
    )
