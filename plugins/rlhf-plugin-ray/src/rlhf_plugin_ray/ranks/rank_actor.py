"""The actor of one rank, which holds a training backend and executes the driver's calls one after the other.

All methods are coroutines, for two reasons: they then run in one thread, in which torch keeps its state, and ``watch``
can be pending at all times. Only methods that wait for engines give way to another call, such as ``break_link``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import ray
from numpy.typing import NDArray

from rlhf_core import RLHFError
from rlhf_core.contracts import (
    ComponentRef,
    RoleSpec,
    Statistic,
    StepOutcome,
    StepPlan,
    TokenColumns,
    TopTokens,
    TrainBackend,
    TrainBatch,
    TrajectoryColumns,
    Undoes,
)
from rlhf_core.storage import failed_writes_named
from rlhf_trainer.runs import OldObjects
from rlhf_weights import Invitation
from rlhf_weights import Path as WeightPath

from ..batches.stored_tokens import with_blocks
from ..processes.actor import Actor
from ..processes.process import GroupPlace, HeldPort, RankMeeting, own_address
from ..processes.rank_logs import LogMessage, listening
from ..weights.packed_weights import PackedBucket, pack
from ..weights.rank_links import Offer, RankLinks

PORT_TAKEN = "EADDRINUSE"
"""torch's word for a port that another program listens on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUpdate:
    """A rank's part of an update."""

    outcome: StepOutcome
    changes: int
    """``RankActor.changes`` after it."""
    messages: Sequence[LogMessage]
    """Messages that were logged meanwhile."""


class RankActor(Actor):
    """A rank in a process of its own. ``prepare`` and ``setup`` have to come first, in this order."""

    def __init__(self) -> None:
        self._backend: TrainBackend | None = None
        self._links = RankLinks()
        self._port: HeldPort | None = None
        self._weights_are_out = False
        self._old_objects = OldObjects()
        self._steps = self._loads = 0

    @property
    def changes(self) -> int:
        """Number of times that this rank's weights or training state may have changed: as the backend counts updates,
        which leaves out steps that failed before their update; else the number of calls. Equal on all ranks of a role
        between two of its calls, unless one of them failed alone."""
        updates = getattr(self._backend, "updates_begun", None)
        return self._loads + (self._steps if updates is None else updates)

    async def meeting(self) -> RankMeeting:
        """Return the address and port at which the ranks form their process group.

        No other program gets this port until ``setup`` has returned.
        """
        self._port = HeldPort()
        return RankMeeting(address=own_address(), port=self._port.number)

    async def setup(
        self, role: RoleSpec, backend: ComponentRef, place: GroupPlace
    ) -> Sequence[LogMessage]:
        """Build the backend, and return the messages that were logged meanwhile. Returns when all ranks have built it.

        Args:
            place: this rank's place in the process group of its role.

        Raises:
            RLHFError: another program listens on the port at which the ranks meet.
        """
        place.export()
        with listening(self._plugins) as messages, self._meeting_port(place):
            self._backend = self._plugins.build(backend)
            self._ready.setup(role, self._plugins)
        return messages

    @contextmanager
    def _meeting_port(self, place: GroupPlace) -> Iterator[None]:
        """Release the held port once the body has run, by which time the backend listens on the port itself."""
        try:
            yield
        except RuntimeError as error:  # torch has no error class for a port that is taken
            if self._port is None or PORT_TAKEN not in str(error):
                raise
            raise RLHFError(
                f"port {place.master_port} of {place.master_address}, where the ranks of this role meet, was taken by "
                "another program. Start the run again, which takes another port",
                code="ranks/port-taken",
            ) from error
        finally:
            if self._port is not None:
                self._port.release()

    async def assemble(self, rows: TrajectoryColumns, *blocks: TokenColumns) -> TrajectoryColumns:
        """Return rows with their tokens, for calls of the methods below.

        Args:
            rows: rows whose tokens are rows of ``blocks``.
            blocks: blocks of tokens, which Ray fetches from the object store.
        """
        whole = with_blocks(rows, blocks)
        return replace(whole, tokens=whole.tokens.read())

    async def per_action(
        self, name: Literal["logprobs", "base_logprobs", "values"], batch: TrajectoryColumns
    ) -> NDArray[np.float32]:
        """Return (sum of A,) log-probs, with or without the adapter, or values of this rank's rows."""
        calls = {
            "logprobs": self._ready.logprobs,
            "base_logprobs": self._ready.base_logprobs,
            "values": self._ready.values,
        }
        return calls[name](batch)

    async def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> Mapping[Statistic, NDArray[np.float32]]:
        """Return (sum of A,) of each statistic, for this rank's rows."""
        return self._ready.statistics(batch, names)

    async def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        """Return (sum of A, k) tokens with the largest log-probs, for this rank's rows."""
        return self._ready.top_tokens(batch, k)

    async def train_step(
        self, columns: TrainBatch, trajectories: TrajectoryColumns, plan: StepPlan
    ) -> RankUpdate:
        """Do this rank's part of one update.

        Args:
            columns: this rank's rows of the columns, with empty trajectories.
            trajectories: this rank's rows of the trajectories; a separate object, since log-probs may have used it.
        """
        # A search in one rank would keep the others waiting.
        self._old_objects.step_begins()
        self._steps += 1
        with listening(self._plugins) as messages:
            outcome = self._ready.train_step(replace(columns, trajectories=trajectories), plan)
        return RankUpdate(outcome=outcome, changes=self.changes, messages=messages)

    async def undo(self, changes: int) -> bool:
        """Bring back what this rank had when ``changes`` was this; False: it has not kept that."""
        if self.changes == changes:
            return True
        backend = self._ready
        return isinstance(backend, Undoes) and backend.undo(changes - self._loads)

    async def offload(self, weights: bool, state: bool) -> None:
        """Move the state of training, if ``state``, and the model, if ``weights``, to host memory."""
        self._ready.offload(weights=weights, state=state)
        self._weights_are_out = self._weights_are_out or weights

    async def reload(self) -> None:
        """Move back what ``offload`` moved."""
        self._ready.reload()
        self._weights_are_out = False

    @contextmanager
    def _weights_here(self) -> Iterator[None]:
        """Have the weights on the device inside of the context: an engine may start anew while its roles are out."""
        if not self._weights_are_out:
            yield
            return
        self._ready.reload(state=False)
        try:
            yield
        finally:
            self._ready.offload()

    async def publish(self, keep: bool) -> list[ray.ObjectRef[PackedBucket]]:
        """Put the weights into the object store, bucket by bucket, and return the references.

        Args:
            keep: False on all ranks but one: they take part in gathering each bucket, and put nothing into the store.
        """
        references = []
        with self._weights_here():
            for bucket in self._ready.buckets():
                if keep:
                    references.append(ray.put(pack(bucket)))
        return references

    async def plan_weights(self, bucket_bytes: int) -> Offer:
        """Return the size and the device of this rank's weights, after dealing them into buckets for links."""
        return self._links.plan(self._ready.buckets(), bucket_bytes)

    async def open_link(
        self, name: str, path: WeightPath, num_receivers: int, one_machine: bool, timeout_s: float
    ) -> Invitation:
        """Make this end of a link to engines, and return the invitation for the other ends. ``connect_link`` is next.

        Args:
            num_receivers: number of processes that will join.
            one_machine: True if all of these are on this machine.
            timeout_s: deadline of every single wait at the ends of the link.
        """
        host = "127.0.0.1" if one_machine else own_address()
        return self._links.open(name, path, num_receivers, host, timeout_s)

    async def connect_link(self, name: str) -> None:
        """Wait until all receivers have joined a link.

        Raises:
            LinkBroken: a receiver did not join.
        """
        await self._links.connect(name)

    async def send_weights(self, version: int, names: list[str]) -> dict[str, str]:
        """Send the weights by the named links, and return the reason for each link that broke, by its name.

        Without links this rank only takes part in gathering the weights.
        """
        with self._weights_here():
            return await self._links.send(version, names, self._ready.buckets())

    async def break_link(self, name: str, reason: str) -> None:
        """End the waits at all ends of a link, also while this rank sends weights by the link."""
        self._links.give_up(name, reason)

    async def close_link(self, name: str) -> None:
        """Free this end of a link."""
        self._links.close(name)

    async def checksum(self) -> str:
        """Return a digest of the weights, for which all ranks may have to gather them."""
        return self._ready.checksum()

    async def save(self, folder: Path) -> None:
        """Write this rank's part of the training state.

        Raises:
            StorageError: it could not be written.
        """
        with failed_writes_named():
            self._ready.save(folder)

    async def load(self, folder: Path) -> int:
        """Read this rank's part of the training state, and return ``changes``."""
        self._loads += 1
        self._ready.load(folder)
        return self.changes

    async def export(self, folder: Path, ema: bool) -> None:
        """Write the model as Hugging Face files; ``ema`` takes the averaged weights.

        Raises:
            StorageError: they could not be written.
        """
        with failed_writes_named():
            self._ready.export(folder, ema=ema)

    async def close(self) -> None:
        """Close the links, and let the backend end the processes that it has started."""
        self._links.close_all()
        if self._backend is not None:
            self._backend.close()

    @property
    def _ready(self) -> TrainBackend:
        assert self._backend is not None, "setup comes first"
        return self._backend
