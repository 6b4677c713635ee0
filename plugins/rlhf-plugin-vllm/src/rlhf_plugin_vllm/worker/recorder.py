"""Which part of which parameter each weight was copied to.

vLLM keeps several weights of a checkpoint in one parameter (query, key and value; gate and up), and each model has its
own code that says where. Instead of saying it a second time, the copies are watched while that code runs. What is
learned serves to read the weights back, and to notice one that went nowhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf_core.weights import Slot, torch_dtype


@dataclass(frozen=True, slots=True)
class Part:
    """One copy: some elements of a weight, and where they are kept."""

    kept: Tensor
    """A view of the parameter."""
    stride: tuple[int, ...]
    """Of the elements in the weight, in the shape of ``kept``."""
    offset: int
    """Of the first element in the weight."""


@dataclass(slots=True)
class Placed:
    """A weight and its parts."""

    slot: Slot
    parts: list[Part]

    def is_whole(self) -> bool:
        """True when every element was copied somewhere."""
        return self.num_copied == self.num_elements

    @property
    def num_elements(self) -> int:
        return self.slot.nbytes // torch_dtype(self.slot.dtype).itemsize

    @property
    def num_copied(self) -> int:
        return sum(part.kept.numel() for part in self.parts)

    @property
    def region(self) -> str:
        """Which elements were copied: equal for two workers if and only if both hold the same, in the same parts."""
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
        """Whether what was copied is what ``weight`` has at these elements."""
        flat = weight.contiguous()
        start = flat.storage_offset()
        return all(
            torch.equal(
                part.kept, flat.as_strided(part.kept.shape, part.stride, start + part.offset)
            )
            for part in self.parts
        )

    def read(self) -> Tensor:
        """Return the weight as the model holds it, in its shape of a checkpoint and the model's dtype; elements that
        were not copied are undefined. A view of the parameter where that has the same layout."""
        first, stride = self.parts[0].kept, self.parts[0].stride
        is_one = len(self.parts) == 1 and self.is_whole()
        if is_one and first.is_contiguous() and first.stride() == stride:
            return first.view(self.slot.shape)
        weight = torch.empty(self.num_elements, dtype=first.dtype, device=first.device)
        for part in self.parts:
            weight.as_strided(part.kept.shape, part.stride, part.offset).copy_(part.kept)
        return weight.view(self.slot.shape)


class CopyRecorder(TorchDispatchMode):
    """While active, notes each copy out of a bucket.

    Args:
        bucket: the bytes that hold the slots.
    """

    def __init__(self, bucket: Tensor, slots: Sequence[Slot]) -> None:
        super().__init__()
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
        return func(*args, **(kwargs or {}))

    def _note(self, kept: Tensor, source: Tensor) -> None:
        position = source.data_ptr()
        if not self._base <= position < self._end or source.numel() == 0:
            return
        at = position - self._base
        slot = self._slots[bisect_right(self._starts, at) - 1]
        source = source.expand_as(kept)
        offset = (at - slot.offset) // source.element_size()
        self.placed[slot.name].parts.append(Part(kept, source.stride(), offset))
