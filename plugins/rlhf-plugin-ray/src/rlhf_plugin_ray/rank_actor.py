"""The process of one rank: holds a training backend and does what the driver asks, one call after the other.

Methods are coroutines without a wait inside, so that they run in one thread, in which torch keeps its state, and that
``watch`` can be pending all the while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import ray

from rlhf_core.contracts import (
    ComponentRef,
    RoleSpec,
    Statistic,
    StepOutcome,
    StepPlan,
    TrainBackend,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_core.plugins import Plugins

from .batch_parts import Rows, part_of, rows_of
from .packed_weights import pack
from .process import (
    Driver,
    GroupPlace,
    Meeting,
    ProcessInfo,
    become_like,
    find_meeting,
    introduce,
)


class RankActor:
    """Made empty; ``prepare`` and then ``setup`` make it a rank."""

    def __init__(self) -> None:
        self._plugins: Plugins
        self._backend: TrainBackend | None = None

    async def watch(self) -> None:
        """Never return: the caller learns of this process's death at once, even while it asks for nothing."""
        await asyncio.Event().wait()

    async def prepare(self, driver: Driver, who: str, threads: int) -> ProcessInfo:
        """Become like the driver, or refuse."""
        self._plugins = become_like(driver, who, threads)
        return introduce()

    async def meeting(self) -> Meeting:
        """Where the other ranks can find this one."""
        return find_meeting()

    async def setup(self, role: RoleSpec, backend: ComponentRef, place: GroupPlace) -> None:
        """Build the backend; returns when all ranks have."""
        place.export()
        self._backend = self._plugins.build(backend)
        self._ready.setup(role, self._plugins)

    async def scores(
        self,
        what: Literal["logprobs", "values"],
        batch: TrajectoryColumns,
        rows: Rows,
    ) -> Any:
        """(sum of A,) of the given rows."""
        part = rows_of(batch, rows)
        return self._ready.logprobs(part) if what == "logprobs" else self._ready.values(part)

    async def statistics(
        self, batch: TrajectoryColumns, rows: Rows, names: Sequence[Statistic]
    ) -> Any:
        return self._ready.statistics(rows_of(batch, rows), names)

    async def top_tokens(self, batch: TrajectoryColumns, rows: Rows, k: int) -> Any:
        return self._ready.top_tokens(rows_of(batch, rows), k)

    async def train_step(
        self,
        batch: TrainBatch,
        trajectories: TrajectoryColumns,
        rows: Rows,
        supervised_rows: Rows | None,
        plan: StepPlan,
    ) -> StepOutcome:
        """Do this rank's part of an optimizer step."""
        part = part_of(batch, trajectories, rows, supervised_rows)
        return self._ready.train_step(part, plan)

    async def publish(self, keep: bool) -> list[ray.ObjectRef]:
        """Put the weights into the object store, bucket by bucket, and return the references.

        Every rank takes part, because gathering a bucket may need all of them; only one keeps the result.
        """
        references = []
        for bucket in self._ready.buckets():
            if keep:
                references.append(ray.put(pack(bucket)))
        return references

    async def checksum(self) -> str:
        return self._ready.checksum()

    async def save(self, folder: Path) -> None:
        self._ready.save(folder)

    async def load(self, folder: Path) -> None:
        self._ready.load(folder)

    async def export(self, folder: Path, ema: bool) -> None:
        self._ready.export(folder, ema=ema)

    async def close(self) -> None:
        """Let the backend end what it has started."""
        if self._backend is not None:
            self._backend.close()

    @property
    def _ready(self) -> TrainBackend:
        assert self._backend is not None, "setup comes first"
        return self._backend
