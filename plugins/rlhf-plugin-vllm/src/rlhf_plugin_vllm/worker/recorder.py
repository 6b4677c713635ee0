"""A recorder of the part of a parameter that each weight is copied to.

vLLM keeps several weights of a checkpoint in one parameter, such as query, key and value, or gate and up. Each model's
own ``load_weights`` knows the place of each weight. The recorder watches the copies that this code makes, so that the
places are not written down a second time. The record serves to read the weights back, and to notice a weight that was
not copied.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf_weights import TensorSlot, torch_dtype


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """One copy of some elements of a weight into a parameter."""

    kept: Tensor
    """View of the parameter that received the elements."""
    stride: tuple[int, ...]
    """Strides of the elements in the weight, in the shape of ``kept``."""
    offset: int
    """Index of the first element in the flat weight."""


@dataclass(slots=True)
class Placed:
    """A weight, and the copies of its elements."""

    slot: TensorSlot
    """Name, dtype and shape of the weight, and its place in the bucket."""
    parts: list[CopiedPart]

    def is_whole(self) -> bool:
        """Return True if as many elements were copied as the weight has."""
        return self.num_copied == self.num_elements

    @property
    def num_elements(self) -> int:
        """Number of elements of the weight."""
        return self.slot.nbytes // torch_dtype(self.slot.dtype).itemsize

    @property
    def num_copied(self) -> int:
        """Number of elements that were copied."""
        return sum(part.kept.numel() for part in self.parts)

    @property
    def region(self) -> str:
        """Description of the copied elements; equal for two workers if and only if they hold the same parts."""
        if self.is_whole():
            return "whole"
        parts = sorted((part.offset, tuple(part.kept.shape), part.stride) for part in self.parts)
        return str(parts)

    def held(self) -> Tensor:
        """Return a mask in the weight's shape, True at the elements that were copied."""
        mask = torch.zeros(self.num_elements, dtype=torch.bool, device=self.parts[0].kept.device)
        for part in self.parts:
            mask.as_strided(part.kept.shape, part.stride, part.offset).fill_(True)
        return mask.view(self.slot.shape)

    def equals(self, weight: Tensor) -> bool:
        """Return True if the copied elements equal the elements of ``weight`` at the same indices."""
        flat = weight.contiguous()
        start = flat.storage_offset()
        return all(
            torch.equal(
                part.kept, flat.as_strided(part.kept.shape, part.stride, start + part.offset)
            )
            for part in self.parts
        )

    def read(self) -> Tensor:
        """Return the weight as the model holds it, in the checkpoint's shape and the model's dtype.

        Elements that were not copied are undefined. The result is a view of the parameter if the layouts are the same.
        """
        first, stride = self.parts[0].kept, self.parts[0].stride
        is_one = len(self.parts) == 1 and self.is_whole()
        if is_one and first.is_contiguous() and first.stride() == stride:
            return first.view(self.slot.shape)
        weight = torch.empty(self.num_elements, dtype=first.dtype, device=first.device)
        for part in self.parts:
            weight.as_strided(part.kept.shape, part.stride, part.offset).copy_(part.kept)
        return weight.view(self.slot.shape)


class CopyRecorder(TorchDispatchMode):  # torch's __init_subclass__ has no types
    """Records every ``copy_`` out of a bucket while the mode is active. ``placed`` has each weight's parts by name.

    Some models make a part of a weight contiguous before they copy it. In the mode this gives the part itself, so that
    the copy is known as one out of the bucket.

    Args:
        bucket: (bytes,) the bucket.
        slots: places of the weights in the bucket.
    """

    def __init__(self, bucket: Tensor, slots: Sequence[TensorSlot]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.placed = {slot.name: Placed(slot, []) for slot in slots}
        self._slots = sorted(slots, key=lambda slot: slot.offset)
        self._starts = [slot.offset for slot in self._slots]
        self._base = bucket.data_ptr()
        self._end = self._base + bucket.nbytes

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten.copy_.default:
            self._note(args[0], args[1])
        if makes_contiguous(func, kwargs) and self._is_inside(args[0]):
            return args[0]
        return func(*args, **(kwargs or {}))

    def _is_inside(self, tensor: Tensor) -> bool:
        return self._base <= tensor.data_ptr() < self._end

    def _note(self, kept: Tensor, source: Tensor) -> None:
        if not self._is_inside(source) or source.numel() == 0:
            return
        at = source.data_ptr() - self._base
        slot = self._slots[bisect_right(self._starts, at) - 1]
        source = source.expand_as(kept)
        offset = (at - slot.offset) // source.element_size()
        self.placed[slot.name].parts.append(CopiedPart(kept, source.stride(), offset))


def makes_contiguous(func: Any, kwargs: Mapping[str, Any] | None) -> bool:
    """Return whether an operation is the copy that ``Tensor.contiguous`` makes."""
    wanted = (kwargs or {}).get("memory_format")
    return func is torch.ops.aten.clone.default and wanted is torch.contiguous_format
