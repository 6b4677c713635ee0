"""All ranks of one role, as the loop sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from rlhf_core import RLHFError
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

from .batch_parts import Rows, columns_of, joined, rows_of
from .config import RayRuntimeConfig
from .packed_weights import Published, unpack
from .process import GroupPlace, Meeting, Process
from .rank_links import Offer
from .sharding import split_rows
from .stored_tokens import references_of, without_tokens
from .supervisor import ProcessLost, Supervisor, all_of
from .told import tell

DEATH_KNOWN_S = 3.0
"""Within which a rank's death is known; the others may fail before, because they wait for it."""


class SharedBatches:
    """The newest batch in the object store, cut for ranks; roles with equally many ranks share the parts.

    Tokens that are in the store already do not come here: each rank puts its own part together.
    """

    def __init__(self) -> None:
        self._batch: TrajectoryColumns | None = None
        self._parts: dict[int, list[ray.ObjectRef]] = {}
        """By number of ranks, by which alone the rows of each are dealt."""

    def put(
        self, batch: TrajectoryColumns, rows: Sequence[Rows], ranks: Sequence[Process]
    ) -> list[ray.ObjectRef]:
        """Return a reference by rank, to its own rows alone; those of the batch before are let go."""
        if self._batch is not batch:
            self._batch, self._parts = batch, {}
        if len(rows) not in self._parts:
            self._parts[len(rows)] = [
                self._part(rows_of(batch, own), rank) for own, rank in zip(rows, ranks, strict=True)
            ]
        return self._parts[len(rows)]

    @staticmethod
    def _part(own: TrajectoryColumns, rank: Process) -> ray.ObjectRef:
        blocks = references_of(own)
        if blocks is None:
            return ray.put(own)
        return rank.actor.assemble.remote(without_tokens(own), *blocks)


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
        self.changes = 0
        """Calls that change the weights, counted when they are made."""
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
        told = await self._on_all(
            "setup",
            lambda i, actor: actor.setup.remote(spec, backend, places[i]),
            timeout_s=self._config.setup_timeout_s,
        )
        tell(told, [process.who for process in self.ranks])

    async def logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        return await self._scores("logprobs", batch)

    async def values(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        return await self._scores("values", batch)

    async def _scores(self, what: str, batch: TrajectoryColumns) -> NDArray[np.float32]:
        rows = split_rows(batch.num_tokens, len(self.ranks))
        shards = self._batches.put(batch, rows, self.ranks)
        parts = await self._on_all(what, lambda i, actor: actor.scores.remote(what, shards[i]))
        return joined(batch, rows, parts)

    async def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, NDArray[np.float32]]:
        rows = split_rows(batch.num_tokens, len(self.ranks))
        shards = self._batches.put(batch, rows, self.ranks)
        parts = await self._on_all(
            "statistics", lambda i, actor: actor.statistics.remote(shards[i], list(names))
        )
        return {name: joined(batch, rows, [part[name] for part in parts]) for name in names}

    async def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        rows = split_rows(batch.num_tokens, len(self.ranks))
        shards = self._batches.put(batch, rows, self.ranks)
        parts = await self._on_all(
            "top_tokens", lambda i, actor: actor.top_tokens.remote(shards[i], k)
        )
        return TopTokens(
            token_ids=joined(batch, rows, [part.token_ids for part in parts]),
            logprobs=joined(batch, rows, [part.logprobs for part in parts]),
        )

    async def train_step(self, batch: TrainBatch, plan: StepPlan) -> StepOutcome:
        """Do one optimizer step; the plan's normalizers are those of the whole batch on every rank."""
        self.changes += 1
        trajectories = batch.trajectories
        rows = split_rows(trajectories.num_tokens, len(self.ranks))
        supervised: Sequence[Rows | None] = [None] * len(self.ranks)
        if batch.supervised is not None:
            supervised = split_rows(batch.supervised.num_tokens, len(self.ranks))
        shards = self._batches.put(trajectories, rows, self.ranks)
        # The trajectories are in the store already, if a role has scored them; the columns follow.
        columns = [
            ray.put(columns_of(batch, own, also))
            for own, also in zip(rows, supervised, strict=True)
        ]
        outcomes = await self._on_all(
            "train_step",
            lambda i, actor: actor.train_step.remote(columns[i], shards[i], plan),
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
        self.changes += 1
        await self._on_folder("load", folder)

    async def export(self, folder: Path, *, ema: bool = False) -> None:
        await self._on_folder("export", folder, ema)

    async def _on_folder(self, method: str, folder: Path, *arguments: Any) -> None:
        path = folder.resolve()
        await self._on_all(method, lambda _, actor: getattr(actor, method).remote(path, *arguments))

    def weights(self) -> RoleWeights:
        """The ranks' weights; engines of this runtime get them from the ranks by ``delivery``."""
        return RoleWeights(self)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Let no other call reach the ranks. What is below is called within."""
        async with self._lock:
            yield

    async def publish(self, version: int) -> Published:
        """Have the first rank put the weights into its node's object store."""
        published = await self._on_held(
            "publish", lambda i, actor: actor.publish.remote(i == 0), self._config.sync_timeout_s
        )
        return Published(version=version, buckets=published[0])

    async def plan_weights(self, bucket_bytes: int) -> list[Offer]:
        """Return what each rank has to send."""
        return await self._on_held(
            "plan_weights",
            lambda _, actor: actor.plan_weights.remote(bucket_bytes),
            self._config.sync_timeout_s,
        )

    async def send_weights(self, version: int, links: Sequence[Sequence[str]]) -> dict[str, str]:
        """Have every rank send the weights by its links, and return why a link broke, by its name.

        Args:
            links: names, by rank. One without takes part in the gathering.
        """
        broken = await self._on_held(
            "send_weights",
            lambda i, actor: actor.send_weights.remote(version, list(links[i])),
            # Its links have deadlines of their own, for each single wait.
            self._config.sync_timeout_s + self._config.call_timeout_s,
        )
        return {name: reason for part in broken for name, reason in part.items()}

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
        async with self._lock:
            return await self._on_held(what, call, timeout_s or self._config.call_timeout_s)

    async def _on_held(
        self, what: str, call: Callable[[int, Any], ray.ObjectRef], timeout_s: float
    ) -> list[Any]:
        try:
            return await all_of(
                self._supervisor.result(call(rank, process.actor), process.who, what, timeout_s)
                for rank, process in enumerate(self.ranks)
            )
        except ProcessLost as error:
            raise self.lose(error) from error.__cause__
        except RLHFError as error:
            patience_s = DEATH_KNOWN_S if len(self.ranks) > 1 else 0.0
            raise await self._supervisor.cause_of(error, patience_s) from error.__cause__

    def lose(self, error: ProcessLost) -> RLHFError:
        """End the run for a rank that is lost, and return why it ends: the first such reason."""
        self._supervisor.fail(
            ProcessLost(
                f"{error.args[0].rstrip('.')}. A rank holds part of the training state, so the run ends; --resume auto "
                "goes on from the newest checkpoint"
            )
        )
        assert self._supervisor.failure is not None
        return self._supervisor.failure


class RoleWeights:
    """Stands for a role's weights where a ``WeightSource`` is asked for."""

    def __init__(self, role: RayRole) -> None:
        self.role = role

    def module(self) -> None:
        """The live module is in another process."""

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        return self.role.fetch_buckets()
