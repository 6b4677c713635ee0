"""The actor of one engine, which receives weights and serves requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from multiprocessing import resource_tracker

import torch

from rlhf_core import RolloutError
from rlhf_core.contracts import (
    Completion,
    ComponentRef,
    Engine,
    EngineSpec,
    GenerationRequest,
    WeightSource,
)
from rlhf_weights import Invitation, LinkedEngine, Place, ReceivingLink, place_of

from ..processes.actor import Actor
from ..processes.process import Driver, ProcessInfo, children_apart
from ..weights.packed_weights import FetchedWeights, LinkedWeights, Published


def reading_device() -> torch.device:
    """Return the device on which this process reads weights for an engine: its GPU if Ray gave it one, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


class EngineActor(Actor):
    """An engine in a process of its own. The engine serves after ``prepare``, ``build`` and the first weights."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._spec: EngineSpec
        self._is_started = False
        self._link: ReceivingLink | None = None
        self._version = -1

    async def prepare(self, driver: Driver, who: str, threads: int) -> ProcessInfo:
        """Make this process like the driver's; arguments and errors are those of ``Actor.prepare``."""
        with children_apart():
            # Python's resource tracker frees the shared memory of killed processes. Python starts one tracker for a
            # process: started here, the tracker survives this worker's process group.
            resource_tracker.ensure_running()
        return await super().prepare(driver, who, threads)

    async def build(self, engine: ComponentRef, spec: EngineSpec, direct: bool) -> Sequence[Place]:
        """Build the engine, and return the places that receive its weights; none if it gets them by the object store.

        The engine serves nothing before its first weights.

        Args:
            direct: weights may come by a link. They go to the engine's own processes if it has any, else to this one.
        """
        self._engine, self._spec = self._plugins.build(engine), spec
        if isinstance(self._engine, LinkedEngine):
            with children_apart():
                await self._engine.start_empty(spec)
            self._is_started = True
            return await self._engine.receivers() if direct else ()
        return (place_of(reading_device()),) if direct else ()

    async def take(self, weights: Published) -> None:
        """Serve weights that are in the object store.

        Raises:
            RolloutError: the engine serves newer weights already.
        """
        self._require_newer(weights.version)
        await self._serve(weights.version, await _fetch(weights))

    async def join(self, invitation: Invitation) -> None:
        """Join a link, which replaces the link that this engine had before.

        Raises:
            LinkBroken: another end of the link did not join.
        """
        if isinstance(self._engine, LinkedEngine):
            await self._engine.join(invitation)
            return
        if self._link is not None:
            self._link.close()
        self._link = ReceivingLink(invitation, 0, reading_device())
        # In a thread, so that this actor answers other calls while the other ends join.
        await asyncio.to_thread(self._link.connect)

    async def receive(self, version: int) -> None:
        """Serve the weights that come by the link.

        Raises:
            RolloutError: the engine serves newer weights already.
            LinkBroken: another end of the link is gone or late.
        """
        self._require_newer(version)
        if isinstance(self._engine, LinkedEngine):
            await self._engine.receive_weights(version)
            self._version = version
            return
        assert self._link is not None, "join comes first"
        with self._link.update(version) as buckets:
            await self._serve(version, LinkedWeights(buckets, keep=not self._is_started))

    def _require_newer(self, version: int) -> None:
        if version < self._version:
            raise RolloutError(
                f"weights of version {version} arrived after those of version {self._version}",
                code="engine/other-weights",
            )

    async def _serve(self, version: int, source: WeightSource) -> None:
        if not self._is_started:
            await self._ready.start(self._spec, source)
            self._is_started = True
        await self._ready.update_weights(version, source)
        self._version = version

    async def generate(self, request: GenerationRequest, version: int) -> list[Completion]:
        """Return the completions of a request.

        Args:
            version: newest version that all engines had when the request was made.

        Raises:
            RolloutError: this engine has weights older than ``version``.
        """
        if version > self._version:
            raise RolloutError(
                f"request {request.uid} is for weights of version {version}; this engine has {self._version}",
                code="engine/other-weights",
            )
        return await self._ready.generate(request)

    async def pause(self) -> None:
        await self._ready.pause()

    async def resume(self) -> None:
        await self._ready.resume()

    async def sleep(self) -> None:
        await self._ready.sleep()

    async def wake(self) -> None:
        await self._ready.wake()

    async def checksum(self) -> str | None:
        return await self._ready.checksum()

    async def close(self) -> None:
        """Close the link, and let the engine end the processes that it has started."""
        if self._link is not None:
            self._link.close()
        if self._engine is not None:
            await self._engine.close()

    @property
    def _ready(self) -> Engine:
        assert self._engine is not None, "build comes first"
        return self._engine


async def _fetch(weights: Published) -> FetchedWeights:
    # On the machine of the rank that published the weights, this maps shared memory; another machine copies them.
    return FetchedWeights(await asyncio.gather(*weights.buckets))
