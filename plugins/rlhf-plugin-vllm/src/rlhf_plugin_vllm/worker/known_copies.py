"""The copies out of a bucket, made again without the model's own code.

A model's ``load_weights`` looks each name up among its modules, which takes the host longer than the copy takes a GPU:
a mixture of experts has tens of thousands of weights. What it copied where is known after the first update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_core.weights import Slot, torch_dtype

from .recorder import Placed


@dataclass(frozen=True, slots=True)
class _Copy:
    kept: Tensor
    """A view of the parameter."""
    dtype: torch.dtype
    """Of the weight in the bucket."""
    stride: tuple[int, ...]
    offset: int
    """Elements of ``dtype`` from the start of the bucket."""


class KnownCopies:
    """What became of one bucket: for buckets with the same slots, while the parameters are the same tensors."""

    def __init__(self, slots: Sequence[Slot], placed: Mapping[str, Placed]) -> None:
        self.slots = list(slots)
        self.placed = placed
        self._copies = [copy for one in placed.values() for copy in _copies_of(one)]

    def repeat(self, bucket: Tensor) -> None:
        """Copy out of ``bucket`` what was copied out of the first one."""
        typed = {dtype: _typed(bucket, dtype) for dtype in {copy.dtype for copy in self._copies}}
        sources = [
            typed[copy.dtype].as_strided(copy.kept.shape, copy.stride, copy.offset)
            for copy in self._copies
        ]
        if sources:
            torch._foreach_copy_([copy.kept for copy in self._copies], sources)


def _copies_of(placed: Placed) -> list[_Copy]:
    dtype = torch_dtype(placed.slot.dtype)
    start = placed.slot.offset // dtype.itemsize
    return [_Copy(part.kept, dtype, part.stride, start + part.offset) for part in placed.parts]


def _typed(bucket: Tensor, dtype: torch.dtype) -> Tensor:
    """The bucket as numbers, less the bytes at its end that make no whole one."""
    return bucket[: len(bucket) // dtype.itemsize * dtype.itemsize].view(dtype)
