"""Copies out of a bucket, repeated without the model's own ``load_weights``.

``load_weights`` looks up each name among the model's modules, which takes the host longer than the copy takes a GPU: a
mixture of experts has tens of thousands of weights. The first update shows which elements belong where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_weights import TensorSlot, numbers_of, torch_dtype

from .recorder import Placed


@dataclass(frozen=True, slots=True)
class _Copy:
    """One copy of some elements of a bucket into a parameter."""

    kept: Tensor
    """View of the parameter that receives the elements."""
    dtype: torch.dtype
    """Dtype of the weight in the bucket."""
    stride: tuple[int, ...]
    """Strides of the elements in the bucket, in elements of ``dtype``, in the shape of ``kept``."""
    offset: int
    """Index of the first element, in elements of ``dtype`` from the start of the bucket."""


class KnownCopies:
    """The copies out of one bucket. They are right for buckets with the same slots, while parameters stay in place.

    Args:
        slots: slots of the bucket.
        placed: parts of each weight of the bucket that the model has copied, by name.
    """

    def __init__(self, slots: Sequence[TensorSlot], placed: Mapping[str, Placed]) -> None:
        self.slots = list(slots)
        self.placed = placed
        self._copies = [copy for one in placed.values() for copy in _copies_of(one)]

    def repeat(self, bucket: Tensor) -> None:
        """Make the copies out of ``bucket``, which has to have the slots of the first bucket."""
        typed = {
            dtype: numbers_of(bucket, dtype) for dtype in {copy.dtype for copy in self._copies}
        }
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
