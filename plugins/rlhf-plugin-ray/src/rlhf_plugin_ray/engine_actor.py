"""The process of one engine, fed with weights from the object store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import ray

from rlhf_core import RolloutError
from rlhf_core.contracts import Completion, ComponentRef, Engine, EngineSpec, GenerationRequest
from rlhf_core.plugins import Plugins

from .packed_weights import FetchedWeights
from .process import Driver, ProcessInfo, become_like, introduce


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One version of the policy's weights in the object store."""

    version: int
    buckets: Sequence[ray.ObjectRef]
    """Of ``PackedBucket``; sent as they are, fetched by who needs them."""


class EngineActor:
    """Made empty; ``prepare`` and then ``start`` make it an engine."""

    def __init__(self) -> None:
        self._plugins: Plugins
        self._engine: Engine | None = None
        self._version = -1

    async def watch(self) -> None:
        """Never return: the caller learns of this process's death at once, even while it asks for nothing."""
        await asyncio.Event().wait()

    async def prepare(self, driver: Driver, who: str, threads: int) -> ProcessInfo:
        """Become like the driver, or refuse."""
        self._plugins = become_like(driver, who, threads)
        return introduce()

    async def start(self, engine: ComponentRef, spec: EngineSpec, weights: Published) -> None:
        """Build the engine, and serve the weights."""
        source = await _fetch(weights)
        self._engine = self._plugins.build(engine)
        await self._ready.start(spec, source)
        await self._ready.update_weights(weights.version, source)
        self._version = weights.version

    async def generate(self, request: GenerationRequest, version: int) -> list[Completion]:
        """Serve a request that was made when ``version`` was the newest.

        Raises:
            RolloutError: this engine has older weights.
        """
        if version > self._version:
            raise RolloutError(
                f"request {request.uid} is for weights of version {version}; this engine has {self._version}"
            )
        return await self._ready.generate(request)

    async def update_weights(self, weights: Published) -> None:
        """Serve ``weights`` from now on.

        Raises:
            RolloutError: they are older than what is served.
        """
        if weights.version < self._version:
            raise RolloutError(
                f"weights of version {weights.version} arrived after those of version {self._version}"
            )
        await self._ready.update_weights(weights.version, await _fetch(weights))
        self._version = weights.version

    async def pause(self) -> None:
        await self._ready.pause()

    async def resume(self) -> None:
        await self._ready.resume()

    async def sleep(self) -> None:
        await self._ready.sleep()

    async def wake(self) -> None:
        await self._ready.wake()

    async def checksum(self) -> str:
        return await self._ready.checksum()

    async def close(self) -> None:
        """Let the engine end what it has started."""
        if self._engine is not None:
            await self._engine.close()

    @property
    def _ready(self) -> Engine:
        assert self._engine is not None, "start comes first"
        return self._engine


async def _fetch(weights: Published) -> FetchedWeights:
    # On the node that published them this maps shared memory; only another node copies.
    return FetchedWeights(await asyncio.gather(*weights.buckets))
