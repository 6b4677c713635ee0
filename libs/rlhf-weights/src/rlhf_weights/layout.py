"""Layout of buckets: the place of each tensor, in plain numbers and strings that processes can send each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 256
"""Number of bytes that divides every tensor's offset: valid for every dtype, and the fastest for copies on a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSlot:
    """Place of one tensor in a bucket."""

    name: str
    """Name of the weight."""
    dtype: str
    """Name of the torch dtype without its prefix: ``float32``."""
    shape: list[int]
    """Shape of the tensor."""
    offset: int
    """Number of bytes from the start of the bucket; a multiple of ``ALIGNMENT``."""

    @property
    def nbytes(self) -> int:
        """Number of bytes of the tensor."""
        return math.prod(self.shape) * torch_dtype(self.dtype).itemsize

    def view(self, bucket: Tensor) -> Tensor:
        """Return the tensor as a view of the bucket's bytes."""
        part = bucket[self.offset : self.offset + self.nbytes]
        return part.view(torch_dtype(self.dtype)).view(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlan:
    """Division of all weights into buckets. Shapes never change, so one plan serves all updates."""

    buckets: tuple[tuple[TensorSlot, ...], ...]
    """Slots of each bucket, in the order in which weights are sent."""
    bucket_bytes: int
    """Number of bytes of a buffer that any bucket fits into."""

    @property
    def num_bytes(self) -> int:
        """Number of bytes of all weights."""
        return sum(slot.nbytes for bucket in self.buckets for slot in bucket)


def plan_weights(weights: Iterable[Mapping[str, Tensor]], bucket_bytes: int) -> WeightPlan:
    """Return the plan for weights that come in this order.

    Args:
        weights: the weights in parts of any size; the plan does not depend on the division into parts.
        bucket_bytes: size of a bucket in bytes; a larger tensor gets a larger bucket.
    """
    buckets: list[list[TensorSlot]] = []
    end, largest = 0, 0
    for part in weights:
        for name, tensor in part.items():
            start = aligned(end)
            if not buckets or start + tensor.nbytes > bucket_bytes:
                buckets.append([])
                start = 0
            slot = slot_for(name, tensor, start)
            buckets[-1].append(slot)
            end = start + slot.nbytes
            largest = max(largest, end)
    return WeightPlan(
        buckets=tuple(tuple(bucket) for bucket in buckets), bucket_bytes=max(largest, ALIGNMENT)
    )


def views(slots: Sequence[TensorSlot], bucket: Tensor) -> list[Tensor]:
    """Return ``slot.view(bucket)`` of each slot, in half of the time: an adapter has hundreds of small factors.

    Args:
        bucket: (bytes,) that start at a multiple of every dtype's size in their storage.
    """
    typed: dict[str, Tensor] = {}
    found = []
    for slot in slots:
        if slot.dtype not in typed:
            typed[slot.dtype] = numbers_of(bucket, torch_dtype(slot.dtype))
        numbers = typed[slot.dtype]
        strides = [1]
        for size in slot.shape[:0:-1]:
            strides.append(strides[-1] * size)
        first = numbers.storage_offset() + slot.offset // numbers.itemsize
        found.append(numbers.as_strided(slot.shape, strides[::-1][: len(slot.shape)], first))
    return found


def numbers_of(bucket: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bytes of a bucket as numbers of ``dtype``, without trailing bytes that do not fill a number."""
    return bucket[: len(bucket) // dtype.itemsize * dtype.itemsize].view(dtype)


def slot_for(name: str, tensor: Tensor, offset: int) -> TensorSlot:
    """Return the slot of ``tensor`` at ``offset``."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSlot(name=name, dtype=dtype, shape=list(tensor.shape), offset=offset)


def aligned(offset: int) -> int:
    """Return the next offset at which a tensor may start."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a slot's ``dtype``.

    Raises:
        ValueError: torch has no such dtype.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"expected the name of a torch dtype such as 'float32', got {name!r}")
    return dtype
