"""The local runtime: every role and the engine in this process, called directly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_core.contracts import (
    Engine,
    Placement,
    RoleHandle,
    RuntimeSpec,
    SharesBase,
    Statistic,
    StepOutcome,
    StepPlan,
    TopTokens,
    TrainBackend,
    TrainBatch,
    TrajectoryColumns,
    Undoes,
    WeightSource,
)
from rlhf_core.plugins import Plugins

from .config import LocalRuntimeConfig
from .threads import default_threads

Result = TypeVar("Result")


class LocalRole:
    """A backend of this process as a ``RoleHandle``.

    Args:
        thread: computes the calls of all roles, one after the other, so that the event loop goes on meanwhile and reads
            what rewards and environments answer, whose deadlines do not stand still. None: calls block the event loop,
            and nothing can see weights or module halfway through one.
        shares_weights: an engine computes with the backend's own tensors. Only passes and updates go to the thread
            then, since the run lets no such engine generate beside them; other calls block the event loop.
    """

    def __init__(
        self, backend: TrainBackend, thread: Executor | None = None, *, shares_weights: bool = False
    ) -> None:
        self._backend = backend
        self._thread = thread
        self._shares_weights = shares_weights
        self._steps = self._loads = 0

    async def logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        return await self._computed(lambda: self._backend.logprobs(batch))

    async def base_logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        return await self._computed(lambda: self._backend.base_logprobs(batch))

    async def values(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        return await self._computed(lambda: self._backend.values(batch))

    async def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, NDArray[np.float32]]:
        return await self._computed(lambda: self._backend.statistics(batch, names))

    async def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        return await self._computed(lambda: self._backend.top_tokens(batch, k))

    @property
    def changes(self) -> int:
        """Number of times that weights or training state may have changed: as the backend counts them, which leaves out
        steps that failed before their update; else the number of calls."""
        updates = getattr(self._backend, "updates_begun", None)
        return self._loads + (self._steps if updates is None else updates)

    async def train_step(self, batch: TrainBatch, plan: StepPlan) -> StepOutcome:
        self._steps += 1
        return await self._computed(lambda: self._backend.train_step(batch, plan))

    async def undo(self, changes: int) -> bool:
        """See ``RoleHandle``."""
        backend, begun = self._backend, changes - self._loads
        return isinstance(backend, Undoes) and await self._call(lambda: backend.undo(begun))

    async def checksum(self) -> str:
        return await self._call(self._backend.checksum)

    async def save(self, folder: Path) -> None:
        await self._call(lambda: self._backend.save(folder))

    async def load(self, folder: Path) -> None:
        self._loads += 1
        await self._call(lambda: self._backend.load(folder))

    async def export(self, folder: Path, *, ema: bool = False) -> None:
        await self._call(lambda: self._backend.export(folder, ema=ema))

    async def offload(self, *, weights: bool = True, state: bool = True) -> None:
        await self._call(lambda: self._backend.offload(weights=weights, state=state))

    async def reload(self) -> None:
        await self._call(self._backend.reload)

    async def _computed(self, call: Callable[[], Result]) -> Result:
        """Return what a pass or an update returns, before which the run holds generation with the same tensors."""
        return await _called(call, self._thread)

    async def _call(self, call: Callable[[], Result]) -> Result:
        if not self._shares_weights:
            return await _called(call, self._thread)
        # A pass or an update whose caller was cancelled may still compute with the same tensors.
        await _called(lambda: None, self._thread)
        return call()

    def weights(self) -> WeightSource:
        """The backend itself: the engine may share its module."""
        return self._backend


class LocalRuntime:
    """Builds roles in the order of the spec, then the engine if there is one, which the ``policy`` role feeds.

    Roles whose backend can do it hold weights once that are the same and that none of them trains.
    """

    def __init__(self, config: LocalRuntimeConfig) -> None:
        self._config = config
        self._backends: dict[str, TrainBackend] = {}
        self._engine: Engine | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def start(self, spec: RuntimeSpec, plugins: Plugins) -> Placement:
        """Build everything; the engine serves version 0 of the policy's weights."""
        torch.set_num_threads(self._config.threads or default_threads(spec.roles.values()))
        for name, role in spec.roles.items():
            backend: TrainBackend = plugins.build(spec.backend)
            others = tuple(self._backends.values())
            self._backends[name] = backend
            if isinstance(backend, SharesBase):
                backend.setup_beside(role, plugins, others)
            else:
                backend.setup(role, plugins)
        engine = await self._start_engine(spec, plugins)
        shares = False
        if spec.overlaps and engine is not None:
            shares = engine.shares_weights
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="roles")
        roles: Mapping[str, RoleHandle] = {
            name: LocalRole(backend, self._thread, shares_weights=shares)
            for name, backend in self._backends.items()
        }
        return Placement(roles=roles, engine=engine)

    async def _start_engine(self, spec: RuntimeSpec, plugins: Plugins) -> Engine | None:
        if spec.engine is None or spec.engine_spec is None:
            return None
        for name in spec.moving_roles:
            # The engine is given weights as it starts, and needs the room of everything else.
            self._backends[name].offload(weights=False, state=spec.leaving != "nothing")
        engine: Engine = plugins.build(spec.engine)
        self._engine = engine
        policy = self._backends["policy"]
        await engine.start(spec.engine_spec, policy)
        return engine

    async def close(self) -> None:
        """Take engine and roles down; also after a failed start."""
        try:
            if self._engine is not None:
                await self._engine.close()
        finally:
            if self._thread is not None:
                # A call under way, which nobody waits for any more, has to end before its backend is taken down.
                self._thread.shutdown(cancel_futures=True)
            for backend in self._backends.values():
                backend.close()
            self._engine = None
            self._backends.clear()


async def _called(call: Callable[[], Result], thread: Executor | None) -> Result:
    if thread is None:
        return call()
    return await asyncio.get_running_loop().run_in_executor(thread, call)
