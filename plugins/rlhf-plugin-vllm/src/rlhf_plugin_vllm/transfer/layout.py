"""Where each tensor of a bucket lies. Plain numbers and strings, which is all that crosses between processes."""

from __future__ import annotations

import math
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
