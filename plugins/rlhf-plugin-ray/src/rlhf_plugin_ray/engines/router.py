"""The engines as the loop calls them: one engine, which outlives the death of any engine process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import ray

from rlhf_core import PluginError, RolloutError
from rlhf_core.contracts import (
    Completion,
    EngineSpec,
    GenerationRequest,
    WeightSource,
    WeightSync,
)

from ..config import RayRuntimeConfig
from ..processes.crew import Crew
from ..processes.process import ActorProcess, killed_on_error
from ..processes.supervisor import Supervisor
from ..ranks.role import RoleWeights
from .delivery import WeightDelivery

Launch = Callable[[int], Awaitable[ActorProcess]]
"""Coroutine function that starts the process of engine ``index``, builds the engine without weights, and returns this
process."""

UNDONE_BY = {"pause": "resume", "sleep": "wake"}
"""Name of the call that undoes each call."""


class EngineRouter:
    """Implements ``rlhf_core.contracts.Engine`` over several engine processes.

    A request goes to the engine with the fewest completions in progress. When this engine dies, the router sends the
    request to another engine with the same seeds, so the samples are the same. The router replaces a dead engine as
    often as ``max_engine_restarts`` allows. The new engine gets no request before it has the newest weights.
    """

    shares_weights = False

    def __init__(
        self,
        launch: Launch,
        delivery: WeightDelivery,
        supervisor: Supervisor,
        config: RayRuntimeConfig,
    ) -> None:
        self._launch = launch
        self._delivery = delivery
        self._supervisor = supervisor
        self._config = config
        self.crew = Crew(
            "engine",
            self._launch_ready,
            supervisor,
            max_restarts=config.max_engine_restarts,
            option="runtime.ray.max_engine_restarts",
        )
        self._stopped: list[str] = []
        """``pause`` and ``sleep`` in force, in the order of the calls; the router repeats them on a new engine."""

    @property
    def version(self) -> int:
        """Version of the weights that all engines have at least."""
        return self._delivery.served

    async def start_all(self, num_engines: int) -> None:
        """Start ``num_engines`` engines at the same time, and return once all of them serve."""
        await self._delivery.prepare()
        await self.crew.start_all(num_engines)

    async def start(self, spec: EngineSpec, source: WeightSource) -> None:
        """Refuse a start by the loop, since the runtime starts the engines with ``start_all``.

        Raises:
            RolloutError: always.
        """
        raise RolloutError(
            "the Ray runtime has started its engines already, and starts them once only",
            code="engine/wrong-state",
        )

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        """Return one completion per seed, from the first engine that lives long enough to give them.

        Raises:
            RolloutError: the engine refused the request, or no engine is left.
        """
        version = self.version
        completions: list[Completion] = await self.crew.dispatch.send(
            lambda actor: actor.generate.remote(request, version),
            what=f"generate for {request.uid}",
            size=len(request.seeds),
            timeout_s=self._config.generate_timeout_s,
        )
        return completions

    async def update_weights(self, version: int, source: WeightSource) -> WeightSync:
        """Make all engines serve the weights of ``source`` as ``version``, and return the delivery's size and duration.

        The router replaces an engine that dies of the delivery.

        Raises:
            PluginError: ``source`` is not a role of this runtime.
            RolloutError: the engines serve newer weights already.
        """
        if not isinstance(source, RoleWeights):
            raise PluginError(
                f"engines of the Ray runtime take weights from its roles, got {type(source).__name__}",
                code="engine/other-weights",
            )
        if version < self.version:
            raise RolloutError(
                f"weights of version {version} arrived after those of version {self.version}",
                code="engine/other-weights",
            )
        sync, lost = await self._delivery.update(
            version, lambda: [member.process for member in self.crew.members]
        )
        for member in list(self.crew.members):
            if member.process in lost:
                self.crew.lose(member, lost[member.process])
        return sync

    async def pause(self) -> None:
        """Have all engines stop sampling, and keep their requests."""
        await self._stop("pause")

    async def resume(self) -> None:
        """Have all engines go on sampling after ``pause``."""
        await self._undo("pause")

    async def sleep(self) -> None:
        """Have all engines release the memory that they can release."""
        await self._stop("sleep")

    async def wake(self) -> None:
        """Have all engines take their memory back after ``sleep``."""
        await self._undo("sleep")

    async def _stop(self, what: str) -> None:
        # The list changes before the calls, so that an engine that joins during the calls is stopped, too.
        self._stopped.append(what)
        await self._on_all(what, lambda actor: getattr(actor, what).remote())

    async def _undo(self, what: str) -> None:
        undo = UNDONE_BY[what]
        if what in self._stopped:
            self._stopped.remove(what)
        await self._on_all(undo, lambda actor: getattr(actor, undo).remote())

    async def checksum(self) -> str | None:
        """Return a digest of the weights that the engines serve; None if the engines have no digest.

        Raises:
            RolloutError: engines serve different weights, or none is left.
        """
        digests: dict[str, str | None] = {}
        while not digests:
            # The only engine may have died of its new weights, and its successor is being started.
            await self.crew.wait_for_one("checksum")
            digests = await self._on_all("checksum", lambda actor: actor.checksum.remote())
        if len(set(digests.values())) != 1:
            versions = ", ".join(f"{who} {str(one)[:12]}" for who, one in sorted(digests.items()))
            raise RolloutError(
                f"the engines serve different weights: {versions}", code="engine/other-weights"
            )
        return next(iter(digests.values()))

    async def close(self) -> None:
        """Restart no engine from now on. The runtime ends the processes."""
        self.crew.close()

    async def _on_all(
        self, what: str, call: Callable[[Any], ray.ObjectRef[Any]], timeout_s: float | None = None
    ) -> dict[str, Any]:
        return await self.crew.on_all(what, call, timeout_s or self._config.call_timeout_s)

    async def _launch_ready(self, index: int) -> ActorProcess:
        """Start engine ``index``, and bring it into the state of the other engines."""
        process = await self._launch(index)
        with killed_on_error(process.actor):
            await self._catch_up(process)
        return process

    async def _catch_up(self, process: ActorProcess) -> None:
        """Give a new engine the newest weights, and repeat the stops in force, until no further change has come."""

        async def tell(what: str) -> None:
            reference = getattr(process.actor, what).remote()
            timeout_s = self._config.sync_timeout_s
            await self._supervisor.result(reference, process.who, what, timeout_s)

        served, applied = -1, list[str]()
        while True:
            if served != self._delivery.version:
                served = await self._delivery.bring(process)
            elif ended := [what for what in applied if what not in self._stopped]:
                applied.remove(ended[0])
                await tell(UNDONE_BY[ended[0]])
            elif missing := [what for what in self._stopped if what not in applied]:
                applied.append(missing[0])
                await tell(missing[0])
            else:
                return
