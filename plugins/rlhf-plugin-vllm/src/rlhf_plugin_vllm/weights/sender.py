"""The sender of weights from a trainer in the engine's own process: packs buckets, and hands each to vLLM's workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf_core.contracts import WeightSource
from rlhf_weights import (
    CudaBuffer,
    HostBuffer,
    TensorSlot,
    aligned,
    buffer_for,
    slot_for,
    views,
)

Hand = Callable[[dict[str, Any]], Awaitable[None]]
"""Coroutine function that gives the description of one bucket to the workers, and returns when they have copied it."""


class WeightSender:
    """Sends buckets through one buffer, which is kept between updates.

    Args:
        bucket_bytes: number of bytes of the buffer; a larger tensor makes the buffer grow.
    """

    def __init__(self, bucket_bytes: int) -> None:
        self._bucket_bytes = bucket_bytes
        self._buffer: HostBuffer | CudaBuffer | None = None
        self._known: list[list[TensorSlot]] = []
        """Slots of each bucket that the workers know, by its number in an update."""

    @torch.no_grad()
    async def send(self, source: WeightSource, hand: Hand) -> int:
        """Hand over all weights of ``source``, and return their number of bytes.

        The weights are dealt into buckets of the buffer's size, whatever buckets ``source`` yields.
        """
        slots: list[TensorSlot] = []
        number, end, total = 0, 0, 0
        for bucket in source.buckets():
            tensors: list[Tensor] = []
            for name, tensor in bucket.items():
                start = aligned(end)
                if slots and start + tensor.nbytes > self._capacity():
                    self._pack(slots, tensors)
                    await self._flush(number, slots, hand)
                    number += 1
                    slots, tensors, start = [], [], 0
                if not slots:
                    self._make_room(tensor)
                slot = slot_for(name, tensor, start)
                tensors.append(tensor)
                slots.append(slot)
                end = start + slot.nbytes
                total += slot.nbytes
            self._pack(slots, tensors)  # the source may reuse the memory of its buckets
        if slots:
            await self._flush(number, slots, hand)
        return total

    def close(self) -> None:
        """Free the buffer."""
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None

    def _capacity(self) -> int:
        return 0 if self._buffer is None else len(self._buffer.bytes)

    def _make_room(self, tensor: Tensor) -> None:
        """Make the buffer large enough for ``tensor``; a new buffer is on the tensor's device."""
        if self._buffer is None or self._capacity() < tensor.nbytes:
            self.close()
            self._buffer = buffer_for(max(self._bucket_bytes, tensor.nbytes), tensor.device)

    def _pack(self, slots: Sequence[TensorSlot], tensors: Sequence[Tensor]) -> None:
        """Copy tensors to the last of the slots in one call, since an adapter has hundreds of small factors."""
        if tensors:
            assert self._buffer is not None
            places = views(slots[len(slots) - len(tensors) :], self._buffer.bytes)
            torch._foreach_copy_(places, list(tensors))

    async def _flush(self, number: int, slots: list[TensorSlot], hand: Hand) -> None:
        """Hand over bucket ``number`` of an update. Slots are left out that are those of the update before."""
        assert self._buffer is not None
        self._buffer.ready()
        known = number < len(self._known) and self._known[number] == slots
        if not known:
            del self._known[number:]
        await hand(
            {
                "buffer": self._buffer.description,
                "number": number,
                "slots": None if known else [_fields(slot) for slot in slots],
            }
        )
        if not known:
            self._known.append(slots)


def _fields(slot: TensorSlot) -> dict[str, Any]:
    """Return the fields of a slot. ``dataclasses.asdict`` copies them deeply, which takes longer than the copy of a
    factor."""
    return {"name": slot.name, "dtype": slot.dtype, "shape": slot.shape, "offset": slot.offset}
