"""Where each tensor of a bucket lies. Plain numbers and strings, which is all that crosses between processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 256
"""Bytes. Every dtype may start there, and copies of a GPU are fastest from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One tensor in a bucket."""

    name: str
    dtype: str
    """Of torch, without its prefix: ``float32``."""
    shape: list[int]
    offset: int
    """Bytes from the start of the bucket; a multiple of ``ALIGNMENT``."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * torch_dtype(self.dtype).itemsize

    def view(self, bucket: Tensor) -> Tensor:
        """Return the tensor as a view of the bucket's bytes."""
        part = bucket[self.offset : self.offset + self.nbytes]
        return part.view(torch_dtype(self.dtype)).view(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlan:
    """How all weights are cut into buckets. Shapes are fixed, so that it is made once for all updates."""

    buckets: tuple[tuple[Slot, ...], ...]
    bucket_bytes: int
    """Of the buffer that every bucket fits into."""

    @property
    def num_bytes(self) -> int:
        """Of all weights."""
        return sum(slot.nbytes for bucket in self.buckets for slot in bucket)


def plan_weights(weights: Iterable[Mapping[str, Tensor]], bucket_bytes: int) -> WeightPlan:
    """Return the plan of weights that come in this order; how they are grouped now does not matter.

    Args:
        bucket_bytes: size of the buffer; a larger tensor makes it grow.
    """
    buckets: list[list[Slot]] = []
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


def slot_for(name: str, tensor: Tensor, offset: int) -> Slot:
    """Return the slot of ``tensor`` at ``offset``."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Slot(name=name, dtype=dtype, shape=list(tensor.shape), offset=offset)


def aligned(offset: int) -> int:
    """Return the next offset at which a tensor may start."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype that ``slot_for`` wrote.

    Raises:
        ValueError: torch has no such dtype.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"expected the name of a torch dtype such as 'float32', got {name!r}")
    return dtype
