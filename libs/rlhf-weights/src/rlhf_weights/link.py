"""Weight link: its sending and its receiving end, which pass buckets through two buffers.

The sender fills one buffer while the receivers read the other. The plan is sent once, when the link is formed. A
transfer of weights then sends no names or shapes and no requests: the ends stay in step by the buckets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf_core.errors import RLHFError

from .group import LinkBroken, LinkGroup, LinkMeeting
from .layout import TensorSlot, WeightPlan, slot_for
from .memory import CudaBuffer, Description, HostBuffer, buffer_for, open_buffer
from .places import Path

NUM_BUFFERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """Values that a receiver needs to join a link."""

    meeting: LinkMeeting
    """Address of the sender."""
    path: Path
    """Path of the buckets."""
    plan: WeightPlan
    """Layout of the buckets."""
    buffers: tuple[tuple[Description, ...], ...]
    """Descriptions of the sender's buffers for each receiver; empty if buckets are broadcast."""
    first: int = 0
    """Index among all receivers of the first process of the invited engine."""

    def to_plain(self) -> dict[str, Any]:
        """Return the invitation as dictionaries, lists, numbers, strings and bytes."""
        plain = asdict(self)
        plain["plan"]["buckets"] = [list(bucket) for bucket in plain["plan"]["buckets"]]
        plain["buffers"] = [list(each) for each in plain["buffers"]]
        return plain

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> Invitation:
        """Return the invitation that ``to_plain`` made plain."""
        buckets = tuple(
            tuple(TensorSlot(**slot) for slot in bucket) for bucket in plain["plan"]["buckets"]
        )
        return Invitation(
            meeting=LinkMeeting(**plain["meeting"]),
            path=plain["path"],
            plan=WeightPlan(buckets=buckets, bucket_bytes=plain["plan"]["bucket_bytes"]),
            buffers=tuple(tuple(each) for each in plain["buffers"]),
            first=plain["first"],
        )


class SendingLink:
    """The trainer's end. ``connect`` comes first; each transfer is ``start``, ``put`` for each weight, ``finish``.

    Args:
        name: name of the link for messages.
        plan: layout of the buckets.
        path: path of the buckets.
        num_receivers: number of receiving processes, over all engines of the link.
        device: device of the weights.
        host: address of this machine for the receivers.
        timeout_s: time limit of every single wait for a receiver, in seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        plan: WeightPlan,
        path: Path,
        num_receivers: int,
        device: torch.device,
        host: str,
        timeout_s: float,
    ) -> None:
        self._plan, self._path, self._device = plan, path, device
        self._group = LinkGroup.host(name, host, num_receivers + 1, timeout_s)
        self._shared: list[HostBuffer | CudaBuffer] = []
        if path == "memory":
            self._shared = [buffer_for(plan.bucket_bytes, device) for _ in range(NUM_BUFFERS)]
            self._buffers = [shared.bytes for shared in self._shared]
        else:
            self._buffers = _new_buffers(plan, device)
        self.invitation = Invitation(
            meeting=self._group.meeting,
            path=path,
            plan=plan,
            buffers=tuple(
                tuple(shared.describe() for shared in self._shared)
                for _ in range(num_receivers if self._shared else 0)
            ),
        )
        self._expected = [(i, slot) for i, bucket in enumerate(plan.buckets) for slot in bucket]
        self._next = 0
        """Index in ``_expected`` of the weight that has to come next."""
        self._works: dict[int, Any] = {}
        """Handles of the buckets that are on their way, by the bucket's number."""

    def connect(self) -> None:
        """Block until all receivers have joined.

        Raises:
            LinkBroken: a receiver did not come in time.
        """
        self._group.connect(self._device if self._path == "collective" else None)

    async def start(self, version: int) -> None:
        """Begin the transfer of a version of the weights."""
        self._next, self._works = 0, {}
        await self._until(self._group.announce(torch.tensor([version])), "the start of an update")

    @torch.no_grad()
    async def put(self, name: str, weight: Tensor) -> None:
        """Send the next weight of the plan.

        Raises:
            RLHFError: ``weight`` is not the next weight of the plan.
            LinkBroken: a receiver is gone or late.
        """
        number, slot = self._take(name, weight)
        buffer = self._buffers[number % NUM_BUFFERS]
        if slot is self._plan.buckets[number][0]:
            await self._until_free(number)
        slot.view(buffer).copy_(weight)
        if slot is self._plan.buckets[number][-1]:
            self._works[number] = self._ship(number)

    async def finish(self) -> None:
        """Return once every receiver has taken every bucket.

        Raises:
            RLHFError: weights of the plan were not put.
            LinkBroken: a receiver is gone or late.
        """
        if self._next != len(self._expected):
            raise RLHFError(
                f"{len(self._expected) - self._next} weights of the plan were not sent, first "
                f"{self._expected[self._next][1].name}",
                code="weights/not-all-sent",
            )
        for number in sorted(self._works):
            await self._until(self._works.pop(number), f"bucket {number}")
        await self._until(self._group.barrier(), "the end of an update")

    def give_up(self, reason: str) -> None:
        """End the waits of sender and receivers."""
        self._group.give_up(reason)

    def close(self) -> None:
        """Free buffers and connections."""
        self._group.close()
        for shared in self._shared:
            shared.close()
        self._shared, self._buffers = [], []

    def _take(self, name: str, weight: Tensor) -> tuple[int, TensorSlot]:
        if self._next == len(self._expected):
            raise RLHFError(
                f"weight {name} is not in the plan, which is complete", code="weights/other-plan"
            )
        number, slot = self._expected[self._next]
        if slot_for(name, weight, slot.offset) != slot:
            raise RLHFError(
                f"the plan has {slot.name} {slot.dtype} {slot.shape} next, got {name} {weight.dtype} "
                f"{list(weight.shape)}; names, order and shapes of weights have to stay",
                code="weights/other-plan",
            )
        self._next += 1
        return number, slot

    async def _until_free(self, number: int) -> None:
        """Wait until the buffer of bucket ``number`` may be written."""
        # A receiver that comes to the barrier of a bucket has read the bucket before it.
        read = number - 1 if self._path == "memory" else number - NUM_BUFFERS
        if read in self._works:
            await self._until(self._works.pop(read), f"bucket {read}")

    def _ship(self, number: int) -> Any:
        slot = number % NUM_BUFFERS
        if self._path == "collective":
            return self._group.broadcast(self._buffers[slot])
        self._shared[slot].ready()
        return self._group.barrier()

    async def _until(self, work: Any, what: str) -> None:
        for pause in self._group.pauses(work, what):
            await asyncio.sleep(pause)


class ReceivingLink:
    """The end of one process of an engine.

    Args:
        index: index of this process among the processes of its engine.
        device: device on which the process reads the weights.
    """

    def __init__(self, invitation: Invitation, index: int, device: torch.device) -> None:
        self._plan, self._path, self._device = invitation.plan, invitation.path, device
        receiver = invitation.first + index
        self._group = LinkGroup.guest(invitation.meeting, receiver + 1)
        self._buffers: Sequence[Tensor]
        if self._path == "memory":
            self._buffers = [open_buffer(each, device) for each in invitation.buffers[receiver]]
        else:
            self._buffers = _new_buffers(invitation.plan, device)

    def connect(self) -> None:
        """Block until the sender and all receivers have joined.

        Raises:
            LinkBroken: the sender or a receiver did not come in time.
        """
        self._group.connect(self._device if self._path == "collective" else None)

    @contextmanager
    def update(self, version: int) -> Iterator[Iterator[tuple[Sequence[TensorSlot], Tensor]]]:
        """Return a context with an iterator over the buckets of one transfer.

        A bucket is its slots and its bytes; the bytes are valid until the next bucket is taken. An error in the body of
        the context ends the transfer at all ends.

        Raises:
            LinkBroken: the sender or another receiver is gone or late, or sends another version.
        """
        try:
            yield self._take(version)
        except BaseException as error:
            self._group.give_up(str(error) or type(error).__name__)
            self.close()
            raise

    def close(self) -> None:
        """Free buffers and connections."""
        self._group.close()
        self._buffers = []

    def _take(self, version: int) -> Iterator[tuple[Sequence[TensorSlot], Tensor]]:
        group = self._group
        announced = torch.zeros(1, dtype=torch.int64)
        group.wait(group.announce(announced), "the start of an update")
        if int(announced) != version:
            raise LinkBroken(
                f"weight link {group.meeting.name}: expected weights of version {version}, got {int(announced)}",
                code="weights/link-broken",
            )
        work = self._post(0)
        for number, slots in enumerate(self._plan.buckets):
            group.wait(work, f"bucket {number}")
            if self._path == "collective":
                work = self._post(number + 1)
            yield slots, self._buffers[number % NUM_BUFFERS]
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
            if self._path == "memory":
                work = self._post(number + 1)
        group.wait(group.barrier(), "the end of an update")

    def _post(self, number: int) -> Any:
        """Start waiting for bucket ``number`` and return the handle; None behind the last bucket."""
        if number >= len(self._plan.buckets):
            return None
        if self._path == "memory":
            return self._group.barrier()
        return self._group.broadcast(self._buffers[number % NUM_BUFFERS])


def _new_buffers(plan: WeightPlan, device: torch.device) -> list[Tensor]:
    return [
        torch.zeros(plan.bucket_bytes, dtype=torch.uint8, device=device) for _ in range(NUM_BUFFERS)
    ]
