"""The engine that the loop sees: hands requests to engine processes and outlives the death of any of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ray

from rlhf_core import PluginError, RolloutError
from rlhf_core.contracts import Completion, EngineSpec, GenerationRequest, WeightSource

from .config import RayRuntimeConfig
from .engine_actor import Published
from .role import Process, RoleWeights, killed_on_error
from .supervisor import ProcessLost, Supervisor, all_of

log = logging.getLogger(__name__)

Launch = Callable[[int, Published], Awaitable[Process]]
"""Starts engine ``index`` on the given weights and returns once it serves."""

UNDONE_BY = {"pause": "resume", "sleep": "wake"}


@dataclass(slots=True, eq=False)
class _Server:
    """An engine process that serves."""

    process: Process
    index: int
    load: int = 0
    """Completions that it is working on."""


class EngineRouter:
    """Implements ``rlhf_core.contracts.Engine`` over several engine processes.

    A request goes to the engine with the fewest completions in progress. When that one dies, the request is sent to
    another with the same seeds, so the samples are the same. A dead engine is started anew, within the budget, on
    the weights that are being served; it gets no request before it has them.
    """

    def __init__(self, launch: Launch, supervisor: Supervisor, config: RayRuntimeConfig) -> None:
        self._launch = launch
        self._supervisor = supervisor
        self._config = config
        self._servers: list[_Server] = []
        self._weights: Published
        self._restarts_left = config.max_engine_restarts
        self._restarting: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        """Set, and replaced, whenever a server joins or a restart is given up."""
        self._stopped: list[str] = []
        """``pause`` and ``sleep`` in force, in the order of the calls: a new engine has to make up for them."""
        self._last_loss: ProcessLost | None = None
        self._is_closed = False

    async def start_all(self, num_engines: int, weights: Published) -> None:
        """Start the engines, at the same time."""
        self._weights = weights
        await all_of(self._add(index) for index in range(num_engines))

    async def start(self, spec: EngineSpec, source: WeightSource) -> None:
        """The runtime starts the engines, with ``start_all``.

        Raises:
            RolloutError: always.
        """
        raise RolloutError("the engines of the Ray runtime are started by it, once")

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        """Return one completion per seed, from whichever engine survives long enough.

        Raises:
            RolloutError: the engine refused the request, or no engine is left.
        """
        while True:
            server = await self._least_loaded(request)
            server.load += len(request.seeds)
            try:
                return await self._ask(server, request)
            except ProcessLost as error:
                # Also an engine that is late: it is ended, so that it cannot answer twice.
                self._lose(server, error)
            finally:
                server.load -= len(request.seeds)

    async def _ask(self, server: _Server, request: GenerationRequest) -> list[Completion]:
        process = server.process
        reference = process.actor.generate.remote(request, self._weights.version)
        try:
            completions: list[Completion] = await self._supervisor.result(
                reference,
                process.who,
                f"generate for {request.uid}",
                self._config.generate_timeout_s,
            )
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
        return completions

    async def _least_loaded(self, request: GenerationRequest) -> _Server:
        while not self._servers:
            if self._supervisor.failure is not None:
                raise self._supervisor.failure
            if self._is_closed or not self._restarting:
                raise RolloutError(
                    f"request {request.uid}: no engine is left; {self._last_loss or 'they were closed'}. "
                    f"{self._config.max_engine_restarts} restarts were allowed "
                    "(runtime.ray.max_engine_restarts)"
                )
            await self._changed.wait()
        return min(self._servers, key=lambda server: (server.load, server.index))

    async def update_weights(self, version: int, source: WeightSource) -> None:
        """Publish what ``source`` holds and serve it as ``version``; an engine that dies of it is replaced.

        Raises:
            PluginError: the source is not a role of this runtime.
        """
        if not isinstance(source, RoleWeights):
            raise PluginError(
                f"engines of the Ray runtime take weights from its roles, got {type(source).__name__}"
            )
        weights = await source.role.publish(version)
        self._weights = weights
        await self._on_all(
            "update_weights",
            lambda actor: actor.update_weights.remote(weights),
            self._config.sync_timeout_s,
        )

    async def pause(self) -> None:
        await self._stop("pause")

    async def resume(self) -> None:
        await self._undo("pause")

    async def sleep(self) -> None:
        await self._stop("sleep")

    async def wake(self) -> None:
        await self._undo("sleep")

    async def _stop(self, what: str) -> None:
        # Noted first: an engine that joins meanwhile then makes up for it.
        self._stopped.append(what)
        await self._on_all(what, lambda actor: getattr(actor, what).remote())

    async def _undo(self, what: str) -> None:
        undo = UNDONE_BY[what]
        if what in self._stopped:
            self._stopped.remove(what)
        await self._on_all(undo, lambda actor: getattr(actor, undo).remote())

    async def checksum(self) -> str:
        """Digest of the weights that are served.

        Raises:
            RolloutError: engines serve different weights, or none is left.
        """
        digests = await self._on_all("checksum", lambda actor: actor.checksum.remote())
        if len(set(digests.values())) != 1:
            told = ", ".join(f"{who} {digest[:12]}" for who, digest in sorted(digests.items()))
            raise RolloutError(
                f"the engines serve different weights: {told or 'no engine is left'}"
            )
        return next(iter(digests.values()))

    async def close(self) -> None:
        """Start nothing anew any more; the runtime ends the processes."""
        self._is_closed = True
        for task in self._restarting:
            task.cancel()
        self._changed.set()
        self._servers.clear()

    async def _on_all(
        self, what: str, call: Callable[[Any], ray.ObjectRef], timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Make a call of every engine and return the results by name; those that die are left out."""
        deadline = timeout_s or self._config.call_timeout_s

        async def one(server: _Server) -> tuple[str, Any] | None:
            process = server.process
            try:
                reference = call(process.actor)
                return process.who, await self._supervisor.result(
                    reference, process.who, what, deadline
                )
            except ProcessLost as error:
                self._lose(server, error)
                return None

        results: Iterable[tuple[str, Any] | None] = await all_of(
            one(server) for server in list(self._servers)
        )
        return dict(result for result in results if result is not None)

    async def _add(self, index: int) -> None:
        """Start engine ``index``, bring it to where the others are, and let it serve."""
        weights = self._weights
        process = await self._launch(index, weights)
        with killed_on_error(process.actor):
            await self._catch_up(process, weights)
        server = _Server(process, index)
        self._servers.append(server)
        self._supervisor.watch(
            process.actor.watch.remote(), process.who, lambda error: self._lose(server, error)
        )
        self._announce()

    async def _catch_up(self, process: Process, weights: Published) -> None:
        """Repeat what the others were told while this one was loading, and while it caught up."""

        async def tell(what: str, *arguments: Any) -> None:
            reference = getattr(process.actor, what).remote(*arguments)
            timeout_s = self._config.sync_timeout_s
            await self._supervisor.result(reference, process.who, what, timeout_s)

        applied: list[str] = []
        while True:
            if weights is not self._weights:
                weights = self._weights
                await tell("update_weights", weights)
            elif ended := [what for what in applied if what not in self._stopped]:
                applied.remove(ended[0])
                await tell(UNDONE_BY[ended[0]])
            elif missing := [what for what in self._stopped if what not in applied]:
                applied.append(missing[0])
                await tell(missing[0])
            else:
                return

    def _lose(self, server: _Server, error: ProcessLost) -> None:
        """Take a server out, end its process for good, and start another in its place."""
        if server not in self._servers:
            return
        self._servers.remove(server)
        ray.kill(server.process.actor)
        self._restart(server.index, error)

    def _restart(self, index: int, error: ProcessLost) -> None:
        self._last_loss = error
        if self._is_closed or self._supervisor.failure is not None or not self._restarts_left:
            self._announce()
            return
        self._restarts_left -= 1
        log.warning("%s; starting it anew (%d restarts left)", error, self._restarts_left)
        task = asyncio.get_running_loop().create_task(self._add(index))
        self._restarting.add(task)

        def finished(done: asyncio.Task[None]) -> None:
            self._restarting.discard(done)
            if not done.cancelled() and (failure := done.exception()) is not None:
                lost = ProcessLost(f"engine {index} could not be started anew: {failure}")
                self._restart(index, lost)

        task.add_done_callback(finished)

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
