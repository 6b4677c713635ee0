"""The process of one rank: holds a training backend and does what the driver asks, one call after the other.

Methods are coroutines, so that they run in one thread, in which torch keeps its state, and that ``watch`` can be
pending all the while. Those that wait do so for engines, and meanwhile ``break_link`` is heard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import ray

from rlhf_core import RLHFError
from rlhf_core.contracts import (
    ComponentRef,
    RoleSpec,
    Statistic,
    StepOutcome,
    StepPlan,
    TokenColumns,
    TrainBackend,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_core.weights import Invitation
from rlhf_core.weights import Path as WeightPath

from .actor import Actor
from .packed_weights import pack
from .process import (
    GroupPlace,
    HeldPort,
    Meeting,
    own_address,
)
from .rank_links import Offer, RankLinks
from .stored_tokens import with_blocks
from .told import Told, listening

PORT_TAKEN = "EADDRINUSE"
"""How torch calls it."""


class RankActor(Actor):
    """Made empty; ``prepare`` and then ``setup`` make it a rank."""

    def __init__(self) -> None:
        self._backend: TrainBackend | None = None
        self._links = RankLinks()
        self._port: HeldPort | None = None

    async def meeting(self) -> Meeting:
        """Where the other ranks can find this one; the port is held for them until ``setup`` is done."""
        self._port = HeldPort()
        return Meeting(address=own_address(), port=self._port.number)

    async def setup(
        self, role: RoleSpec, backend: ComponentRef, place: GroupPlace
    ) -> Sequence[Told]:
        """Build the backend; returns when all ranks have, with what was logged."""
        place.export()
        with listening(self._plugins) as told, self._meeting_port(place):
            self._backend = self._plugins.build(backend)
            self._ready.setup(role, self._plugins)
        return told

    @contextmanager
    def _meeting_port(self, place: GroupPlace) -> Iterator[None]:
        """Let go of the port that is held once the body is done, by when the backend listens on it.

        Raises:
            RLHFError: another program does.
        """
        try:
            yield
        except RuntimeError as error:  # torch has no class of its own for it
            if self._port is None or PORT_TAKEN not in str(error):
                raise
            raise RLHFError(
                f"port {place.master_port} of {place.master_address}, where the ranks of this role meet, was taken by "
                "another program. Start the run again, which takes another port"
            ) from error
        finally:
            if self._port is not None:
                self._port.release()

    async def assemble(self, rows: TrajectoryColumns, *blocks: TokenColumns) -> TrajectoryColumns:
        """Rows whose tokens are in blocks of the store, with these tokens: what the methods below are given."""
        whole = with_blocks(rows, blocks)
        return replace(whole, tokens=whole.tokens.read())

    async def scores(self, what: Literal["logprobs", "values"], batch: TrajectoryColumns) -> Any:
        """(sum of A,) of this rank's rows."""
        return self._ready.logprobs(batch) if what == "logprobs" else self._ready.values(batch)

    async def statistics(self, batch: TrajectoryColumns, names: Sequence[Statistic]) -> Any:
        return self._ready.statistics(batch, names)

    async def top_tokens(self, batch: TrajectoryColumns, k: int) -> Any:
        return self._ready.top_tokens(batch, k)

    async def train_step(
        self, columns: TrainBatch, trajectories: TrajectoryColumns, plan: StepPlan
    ) -> StepOutcome:
        """Do this rank's part of an optimizer step. Its rows come in two objects, of which scoring used one."""
        return self._ready.train_step(replace(columns, trajectories=trajectories), plan)

    async def publish(self, keep: bool) -> list[ray.ObjectRef]:
        """Put the weights into the object store, bucket by bucket, and return the references.

        Every rank takes part, because gathering a bucket may need all of them; only one keeps the result.
        """
        references = []
        for bucket in self._ready.buckets():
            if keep:
                references.append(ray.put(pack(bucket)))
        return references

    async def plan_weights(self, bucket_bytes: int) -> Offer:
        return self._links.plan(self._ready.buckets(), bucket_bytes)

    async def open_link(
        self, name: str, path: WeightPath, num_receivers: int, one_machine: bool, timeout_s: float
    ) -> Invitation:
        """Make a link to engines, to be followed by ``connect_link``."""
        host = "127.0.0.1" if one_machine else own_address()
        return self._links.open(name, path, num_receivers, host, timeout_s)

    async def connect_link(self, name: str) -> None:
        await self._links.connect(name)

    async def send_weights(self, version: int, names: list[str]) -> dict[str, str]:
        """Send the weights by the named links; without any, take part in gathering them."""
        return await self._links.send(version, names, self._ready.buckets())

    async def break_link(self, name: str, reason: str) -> None:
        """End the waits at all ends of a link, also one that is being sent by."""
        self._links.give_up(name, reason)

    async def close_link(self, name: str) -> None:
        self._links.close(name)

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
        self._links.close_all()
        if self._backend is not None:
            self._backend.close()

    @property
    def _ready(self) -> TrainBackend:
        assert self._backend is not None, "setup comes first"
        return self._backend
