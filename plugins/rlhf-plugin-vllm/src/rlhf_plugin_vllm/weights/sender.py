"""The sender of weights from a trainer in the engine's own process: packs buckets, and hands each to vLLM's workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import torch
from torch import Tensor

from rlhf_core.contracts import WeightSource
from rlhf_core.weights import CudaBuffer, HostBuffer, TensorSlot, aligned, buffer_for, slot_for

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

    @torch.no_grad()
    async def send(self, source: WeightSource, hand: Hand) -> int:
        """Hand over all weights of ``source``, and return their number of bytes.

        The weights are dealt into buckets of the buffer's size, whatever buckets ``source`` yields.
        """
        slots: list[TensorSlot] = []
        end, total = 0, 0
        for bucket in source.buckets():
            places: list[Tensor] = []
            tensors: list[Tensor] = []
            for name, tensor in bucket.items():
                start = aligned(end)
                if slots and start + tensor.nbytes > self._capacity():
                    _copy(places, tensors)
                    await self._flush(slots, hand)
                    slots, start = [], 0
                if not slots:
                    self._make_room(tensor)
                assert self._buffer is not None
                slot = slot_for(name, tensor, start)
                places.append(slot.view(self._buffer.bytes))
                tensors.append(tensor)
                slots.append(slot)
                end = start + slot.nbytes
                total += slot.nbytes
            _copy(places, tensors)  # the source may reuse the memory of its buckets
        if slots:
            await self._flush(slots, hand)
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

    async def _flush(self, slots: list[TensorSlot], hand: Hand) -> None:
        assert self._buffer is not None
        self._buffer.ready()
        await hand(
            {
                "buffer": self._buffer.description,
                "slots": [_fields(slot) for slot in slots],
            }
        )


def _fields(slot: TensorSlot) -> dict[str, Any]:
    """Return the fields of a slot. ``dataclasses.asdict`` copies them deeply, which takes longer than the copy of a
    factor."""
    return {"name": slot.name, "dtype": slot.dtype, "shape": slot.shape, "offset": slot.offset}


def _copy(places: list[Tensor], tensors: list[Tensor]) -> None:
    """Copy tensors to their places in one call, since an adapter has hundreds of small factors; empty both lists."""
    if places:
        torch._foreach_copy_(places, tensors)
        places.clear()
        tensors.clear()
