"""All ranks of one role, as the loop sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from rlhf_core.contracts import (
    ComponentRef,
    RoleSpec,
    Statistic,
    StepOutcome,
    StepPlan,
    TopTokens,
    TrainBatch,
    TrajectoryColumns,
    merge_metrics,
)

from .batch_parts import joined
from .config import RayRuntimeConfig
from .engine_actor import Published
from .packed_weights import unpack
from .process import GroupPlace, Meeting
from .sharding import split_rows
from .supervisor import Supervisor, all_of


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """An actor and how messages call it."""

    actor: Any
    """Ray's handle."""
    who: str


@contextmanager
def killed_on_error(actor: Any) -> Iterator[None]:
    """End the process if the body fails: one that is of no use must not keep the place of its successor."""
    try:
        yield
    except BaseException:
        ray.kill(actor)
        raise


class SharedBatches:
    """The newest batch in the object store, where all roles that score it find it."""

    def __init__(self) -> None:
        self._batch: TrajectoryColumns | None = None
        self._reference: ray.ObjectRef | None = None

    def put(self, batch: TrajectoryColumns) -> ray.ObjectRef:
        """Return the reference of ``batch``; the one before is let go."""
        if self._batch is not batch or self._reference is None:
            self._batch, self._reference = batch, ray.put(batch)
        return self._reference


class RayRole:
    """Cuts batches over ranks and joins what they return. Calls of one role run one after the other, since its ranks
    may wait for each other inside of a call."""

    def __init__(
        self,
        ranks: Sequence[Process],
        supervisor: Supervisor,
        batches: SharedBatches,
        config: RayRuntimeConfig,
    ) -> None:
        self.ranks = ranks
        self._supervisor = supervisor
        self._batches = batches
        self._config = config
        self._lock = asyncio.Lock()

    async def set_up(self, spec: RoleSpec, backend: ComponentRef) -> None:
        """Load the model on all ranks, which may wait for each other while they do."""
        first = self.ranks[0]
        meeting: Meeting = await self._supervisor.result(
            first.actor.meeting.remote(), first.who, "meeting", self._config.start_timeout_s
        )
        places = [
            GroupPlace(
                rank=rank,
                world_size=len(self.ranks),
                master_address=meeting.address,
                master_port=meeting.port,
            )
            for rank in range(len(self.ranks))
        ]
        await self._on_all(
            "setup",
            lambda i, actor: actor.setup.remote(spec, backend, places[i]),
            timeout_s=self._config.setup_timeout_s,
        )

    async def logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        return await self._scores("logprobs", batch)

    async def values(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        return await self._scores("values", batch)

    async def _scores(self, what: str, batch: TrajectoryColumns) -> NDArray[np.float32]:
        rows = split_rows(batch.num_tokens, len(self.ranks))
        shared = self._batches.put(batch)
        parts = await self._on_all(
            what, lambda i, actor: actor.scores.remote(what, shared, rows[i])
        )
        return joined(batch, rows, parts)

    async def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, NDArray[np.float32]]:
        rows = split_rows(batch.num_tokens, len(self.ranks))
        shared = self._batches.put(batch)
        parts = await self._on_all(
            "statistics", lambda i, actor: actor.statistics.remote(shared, rows[i], list(names))
        )
        return {name: joined(batch, rows, [part[name] for part in parts]) for name in names}

    async def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        rows = split_rows(batch.num_tokens, len(self.ranks))
        shared = self._batches.put(batch)
        parts = await self._on_all(
            "top_tokens", lambda i, actor: actor.top_tokens.remote(shared, rows[i], k)
        )
        return TopTokens(
            token_ids=joined(batch, rows, [part.token_ids for part in parts]),
            logprobs=joined(batch, rows, [part.logprobs for part in parts]),
        )

    async def train_step(self, batch: TrainBatch, plan: StepPlan) -> StepOutcome:
        """Do one optimizer step; the plan's normalizers are those of the whole batch on every rank."""
        trajectories = batch.trajectories
        rows = split_rows(trajectories.num_tokens, len(self.ranks))
        supervised: Sequence[NDArray[np.int64] | None] = [None] * len(self.ranks)
        if batch.supervised is not None:
            supervised = split_rows(batch.supervised.num_tokens, len(self.ranks))
        shared = self._batches.put(trajectories)
        # The trajectories are in the store already; the columns go there without them.
        columns = ray.put(replace(batch, trajectories=trajectories.select(rows[0][:0])))
        outcomes = await self._on_all(
            "train_step",
            lambda i, actor: actor.train_step.remote(columns, shared, rows[i], supervised[i], plan),
        )
        logprobs = None
        if plan.return_logprobs:
            logprobs = joined(trajectories, rows, [outcome.logprobs for outcome in outcomes])
        return StepOutcome(
            metrics=merge_metrics([outcome.metrics for outcome in outcomes]), logprobs=logprobs
        )

    async def checksum(self) -> str:
        """The digest that the first rank gives; gathering the weights may need all."""
        digests = await self._on_all("checksum", lambda _, actor: actor.checksum.remote())
        return str(digests[0])

    async def save(self, folder: Path) -> None:
        """Have every rank write its files into one folder, which all machines must see."""
        await self._on_folder("save", folder)

    async def load(self, folder: Path) -> None:
        await self._on_folder("load", folder)

    async def export(self, folder: Path, *, ema: bool = False) -> None:
        await self._on_folder("export", folder, ema)

    async def _on_folder(self, method: str, folder: Path, *arguments: Any) -> None:
        path = folder.resolve()
        await self._on_all(method, lambda _, actor: getattr(actor, method).remote(path, *arguments))

    def weights(self) -> RoleWeights:
        """The ranks' weights; engines of this runtime take them from the object store."""
        return RoleWeights(self)

    async def publish(self, version: int) -> Published:
        """Have the first rank put the weights into its node's object store."""
        published = await self._on_all(
            "publish",
            lambda i, actor: actor.publish.remote(i == 0),
            timeout_s=self._config.sync_timeout_s,
        )
        return Published(version=version, buckets=published[0])

    def fetch_buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the weights in this process, blocking; for consumers that live in the driver."""
        references = [
            process.actor.publish.remote(rank == 0) for rank, process in enumerate(self.ranks)
        ]
        for bucket in ray.get(references, timeout=self._config.sync_timeout_s)[0]:
            yield unpack(ray.get(bucket, timeout=self._config.sync_timeout_s))

    async def _on_all(
        self,
        what: str,
        call: Callable[[int, Any], ray.ObjectRef],
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Make a call of every rank, wait for all, and return the results by rank."""
        deadline = timeout_s or self._config.call_timeout_s
        async with self._lock:
            return await all_of(
                self._supervisor.result(call(rank, process.actor), process.who, what, deadline)
                for rank, process in enumerate(self.ranks)
            )


class RoleWeights:
    """Stands for a role's weights where a ``WeightSource`` is asked for."""

    def __init__(self, role: RayRole) -> None:
        self.role = role

    def module(self) -> None:
        """The live module is in another process."""

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        return self.role.fetch_buckets()
