"""A role as the loop calls it: cuts batches for the role's ranks, and joins the ranks' results."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
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

from ..batches.batch_parts import Rows, columns_of, joined, rows_of
from ..batches.sharding import split_batch, split_rows
from ..batches.stored_tokens import references_of, without_tokens
from ..config import RayRuntimeConfig
from ..processes.process import ActorProcess, GroupPlace, RankMeeting
from ..processes.rank_logs import log_ranks
from ..processes.supervisor import ProcessLost, Supervisor, all_of
from ..weights.packed_weights import Published, unpack
from ..weights.rank_links import Offer

log = logging.getLogger(__name__)

UNDO_S = 60.0
"""Seconds for undoing a failed step. A rank that waits for one that failed alone never answers."""
DEATH_KNOWN_S = 3.0
"""Seconds within which the driver learns of a rank's death. The other ranks wait for this rank, and may fail first."""


@dataclass(frozen=True, slots=True)
class Shards:
    """A batch in the object store, cut into one part for each rank."""

    rows: Sequence[Rows]
    """Ascending row indices of each rank."""
    parts: Sequence[ray.ObjectRef[TrajectoryColumns]]
    """References to the rows of each rank."""


class SharedBatches:
    """The newest batch in the object store, cut into one part for each rank. Roles with equally many ranks share parts.

    If the batch's tokens are in the object store already, each rank assembles its own part from them.
    """

    def __init__(self) -> None:
        self._batch: TrajectoryColumns | None = None
        self._shards: dict[tuple[int, int], Shards] = {}
        """The batch's parts, by the numbers of ranks and of rows of a unit, on which alone the cut depends."""

    def cut(
        self, batch: TrajectoryColumns, ranks: Sequence[ActorProcess], rows_per_unit: int = 1
    ) -> Shards:
        """Return one part of the batch for each rank, and drop the references to the batch before.

        Args:
            rows_per_unit: number of neighboring rows that go to the same rank.
        """
        if self._batch is not batch:
            self._batch, self._shards = batch, {}
        key = len(ranks), rows_per_unit
        if key not in self._shards:
            rows = split_batch(batch, len(ranks), rows_per_unit)
            parts = [
                self._part(rows_of(batch, own), rank) for own, rank in zip(rows, ranks, strict=True)
            ]
            self._shards[key] = Shards(rows, parts)
        return self._shards[key]

    @staticmethod
    def _part(own: TrajectoryColumns, rank: ActorProcess) -> ray.ObjectRef[TrajectoryColumns]:
        blocks = references_of(own)
        if blocks is None:
            return ray.put(own)
        assembled: ray.ObjectRef[TrajectoryColumns] = rank.actor.assemble.remote(
            without_tokens(own), *blocks
        )
        return assembled


class RayRole:
    """Implements ``rlhf_core.contracts.RoleHandle``: cuts batches over ranks, and joins the ranks' results.

    Calls of one role run one after the other, since the ranks may wait for each other inside of a call.

    Args:
        batches: the batches in the object store, shared by all roles.
        rows_per_unit: number of neighboring rows of an update that go to the same rank: 2 for pairs.
    """

    def __init__(
        self,
        ranks: Sequence[ActorProcess],
        supervisor: Supervisor,
        batches: SharedBatches,
        config: RayRuntimeConfig,
        rows_per_unit: int = 1,
    ) -> None:
        self.ranks = ranks
        self._supervisor = supervisor
        self._batches = batches
        self._config = config
        self._rows_per_unit = rows_per_unit
        self.changes = 0
        """Number of the state that the ranks have, as they count it (``RankActor.changes``). While a call may change
        the state, and after one that failed, a number that no other state has had or will have."""
        self._unsure = 0
        self._lock = asyncio.Lock()

    async def set_up(self, spec: RoleSpec, backend: ComponentRef) -> None:
        """Load the model on all ranks, which may wait for each other meanwhile.

        Raises:
            ProcessLost: a rank died, or missed its deadline.
            RLHFError: a rank could not load the model.
        """
        first = self.ranks[0]
        meeting: RankMeeting = await self._supervisor.result(
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
        messages = await self._on_all(
            "setup",
            lambda i, actor: actor.setup.remote(spec, backend, places[i]),
            timeout_s=self._config.setup_timeout_s,
        )
        log_ranks(messages, [process.who for process in self.ranks])

    async def logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """Return (sum of A,) log-probs of the batch's actions."""
        return await self._per_action("logprobs", batch)

    async def base_logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """Return (sum of A,) log-probs of the batch's actions under the model as its adapter began."""
        return await self._per_action("base_logprobs", batch)

    async def values(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """Return (sum of A,) values of the batch's actions."""
        return await self._per_action("values", batch)

    async def _per_action(self, name: str, batch: TrajectoryColumns) -> NDArray[np.float32]:
        shards = self._batches.cut(batch, self.ranks)
        parts = await self._on_all(
            name, lambda i, actor: actor.per_action.remote(name, shards.parts[i])
        )
        return joined(batch, shards.rows, parts)

    async def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, NDArray[np.float32]]:
        """Return (sum of A,) of each statistic, for the batch's actions."""
        shards = self._batches.cut(batch, self.ranks)
        parts = await self._on_all(
            "statistics", lambda i, actor: actor.statistics.remote(shards.parts[i], list(names))
        )
        return {name: joined(batch, shards.rows, [part[name] for part in parts]) for name in names}

    async def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        """Return (sum of A, k) tokens with the largest log-probs, for the batch's actions."""
        shards = self._batches.cut(batch, self.ranks)
        parts = await self._on_all(
            "top_tokens", lambda i, actor: actor.top_tokens.remote(shards.parts[i], k)
        )
        return TopTokens(
            token_ids=joined(batch, shards.rows, [part.token_ids for part in parts]),
            logprobs=joined(batch, shards.rows, [part.logprobs for part in parts]),
        )

    async def train_step(self, batch: TrainBatch, plan: StepPlan) -> StepOutcome:
        """Do one update, and return its outcome. The plan's normalizers are those of the whole batch, on every rank."""
        self.begin_change()
        trajectories = batch.trajectories
        shards = self._batches.cut(trajectories, self.ranks, self._rows_per_unit)
        supervised: Sequence[Rows | None] = [None] * len(self.ranks)
        if batch.supervised is not None:
            supervised = split_rows(batch.supervised.num_tokens, len(self.ranks))
        # The trajectories may be in the object store already, where a role computed log-probs of them. The columns are
        # known only now.
        columns = [
            ray.put(columns_of(batch, own, also))
            for own, also in zip(shards.rows, supervised, strict=True)
        ]
        updates = await self._on_all(
            "train_step",
            lambda i, actor: actor.train_step.remote(columns[i], shards.parts[i], plan),
        )
        self.changes = updates[0].changes
        log_ranks([update.messages for update in updates], [process.who for process in self.ranks])
        outcomes = [update.outcome for update in updates]
        logprobs = entropies = losses = clipped = values = None
        if plan.return_logprobs:
            logprobs = joined(trajectories, shards.rows, [outcome.logprobs for outcome in outcomes])
        if plan.return_entropies:
            parts = [outcome.entropies for outcome in outcomes]
            entropies = joined(trajectories, shards.rows, parts)
        if plan.return_losses and all(outcome.losses is not None for outcome in outcomes):
            losses = joined(trajectories, shards.rows, [outcome.losses for outcome in outcomes])
            clipped = joined(trajectories, shards.rows, [outcome.clipped for outcome in outcomes])
        if plan.return_values and all(outcome.values is not None for outcome in outcomes):
            values = joined(trajectories, shards.rows, [outcome.values for outcome in outcomes])
        return StepOutcome(
            metrics=merge_metrics([outcome.metrics for outcome in outcomes]),
            logprobs=logprobs,
            entropies=entropies,
            losses=losses,
            clipped=clipped,
            values=values,
        )

    def begin_change(self) -> None:
        """Set ``changes`` to a number of its own, before a call that may change the state."""
        self._unsure -= 1
        self.changes = self._unsure

    async def undo(self, changes: int) -> bool:
        """See ``RoleHandle``. False also where a rank is lost, or waits for another one in the call that failed."""
        if self._supervisor.failure is not None:
            return False
        try:
            undone = await self._on_all(
                "undo", lambda _, actor: actor.undo.remote(changes), timeout_s=UNDO_S
            )
        except RLHFError as error:
            log.warning("updates were not undone: %s", error)
            return False
        if not all(undone):
            return False
        self.changes = changes
        return True

    async def checksum(self) -> str:
        """Return the first rank's digest of the weights. All ranks are called, since all may have to gather weights."""
        digests = await self._on_all("checksum", lambda _, actor: actor.checksum.remote())
        return str(digests[0])

    async def save(self, folder: Path) -> None:
        """Have every rank write its part of the training state into one folder, which all machines must see."""
        await self._on_folder("save", folder)

    async def load(self, folder: Path) -> None:
        """Have every rank read its part of the training state."""
        self.begin_change()
        self.changes = (await self._on_folder("load", folder))[0]

    async def export(self, folder: Path, *, ema: bool = False) -> None:
        """Have the ranks write the model as Hugging Face files; ``ema`` takes the averaged weights."""
        await self._on_folder("export", folder, ema)

    async def _on_folder(self, method: str, folder: Path, *arguments: Any) -> list[Any]:
        path = folder.resolve()
        return await self._on_all(
            method, lambda _, actor: getattr(actor, method).remote(path, *arguments)
        )

    async def offload(self, *, weights: bool = True, state: bool = True) -> None:
        """Have the ranks move the state of training to host memory and, with ``weights``, the model."""
        await self._on_all("offload", lambda _, actor: actor.offload.remote(weights, state))

    async def reload(self) -> None:
        """Have the ranks move back what ``offload`` moved."""
        await self._on_all("reload", lambda _, actor: actor.reload.remote())

    def weights(self) -> RoleWeights:
        """Return a handle of the ranks' weights. ``delivery`` brings the weights from the ranks to the engines."""
        return RoleWeights(self)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold back all other calls of the ranks. ``publish``, ``plan_weights`` and ``send_weights`` need this hold."""
        async with self._lock:
            yield

    async def publish(self, version: int) -> Published:
        """Have the first rank put the weights into the object store of its machine, and return the references."""
        published = await self._on_held(
            "publish", lambda i, actor: actor.publish.remote(i == 0), self._config.sync_timeout_s
        )
        return Published(version=version, buckets=published[0])

    async def plan_weights(self, bucket_bytes: int) -> list[Offer]:
        """Return the size and the place of each rank's weights, after each rank has dealt its weights into buckets."""
        return await self._on_held(
            "plan_weights",
            lambda _, actor: actor.plan_weights.remote(bucket_bytes),
            self._config.sync_timeout_s,
        )

    async def send_weights(self, version: int, links: Sequence[Sequence[str]]) -> dict[str, str]:
        """Have every rank send the weights by its links, and return the reason for each link that broke, by its name.

        Args:
            links: names of each rank's links. A rank without links only takes part in gathering the weights.
        """
        broken = await self._on_held(
            "send_weights",
            lambda i, actor: actor.send_weights.remote(version, list(links[i])),
            # Long enough for the links' own deadlines, which hold for each single wait, to expire first.
            self._config.sync_timeout_s + self._config.call_timeout_s,
        )
        return {name: reason for part in broken for name, reason in part.items()}

    def fetch_buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the weights in this process, for a reader in the driver. Blocks until the ranks have published them."""
        references = [
            process.actor.publish.remote(rank == 0) for rank, process in enumerate(self.ranks)
        ]
        for bucket in ray.get(references, timeout=self._config.sync_timeout_s)[0]:
            yield unpack(ray.get(bucket, timeout=self._config.sync_timeout_s))

    async def _on_all(
        self,
        what: str,
        call: Callable[[int, Any], ray.ObjectRef[Any]],
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Call every rank, wait for all of them, and return the results in the order of the ranks."""
        async with self._lock:
            return await self._on_held(what, call, timeout_s or self._config.call_timeout_s)

    async def _on_held(
        self, what: str, call: Callable[[int, Any], ray.ObjectRef[Any]], timeout_s: float
    ) -> list[Any]:
        """Call every rank as ``_on_all`` does, for a caller that holds the lock."""
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
        """End the run because of a lost rank, and return the reason; the earlier reason if the run has ended before."""
        self._supervisor.fail(
            ProcessLost(
                f"{error.args[0].rstrip('.')}. A rank holds part of the training state, so the run ends; --resume auto "
                "continues from the newest checkpoint",
                code="ray/process-lost",
            )
        )
        assert self._supervisor.failure is not None
        return self._supervisor.failure


class RoleWeights:
    """A ``WeightSource`` that stands for the weights of a role's ranks."""

    def __init__(self, role: RayRole) -> None:
        self.role = role

    def module(self) -> None:
        """Return None: the live module is in another process."""

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the weights by Hugging Face name, in buckets, in this process."""
        return self.role.fetch_buckets()
