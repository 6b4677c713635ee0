"""Sources of an engine's weights: buckets from the object store, or buckets from a link.

In the object store a bucket is one array of bytes, which the processes of a machine share without copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_weights import TensorSlot

if TYPE_CHECKING:
    import ray

ALIGNMENT = 64
"""Alignment in bytes of every tensor's start, so that the tensor's bytes can be viewed as its dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """The place of one tensor in the bytes of a bucket."""

    name: str
    """Hugging Face name of the weight."""
    dtype: str
    """Name of the dtype in the module ``torch``, such as ``bfloat16``."""
    shape: tuple[int, ...]
    start: int
    """Index of the tensor's first byte."""
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBucket:
    """The weights of one bucket as bytes."""

    places: tuple[TensorPlace, ...]
    data: NDArray[np.uint8]
    """(bytes of the bucket,) bits of all tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One version of the policy's weights in the object store."""

    version: int
    buckets: Sequence[ray.ObjectRef[PackedBucket]]
    """References to the buckets. An engine that needs the weights fetches the buckets itself."""


def pack(bucket: Mapping[str, Tensor]) -> PackedBucket:
    """Return a copy of the tensors' bits, in the host's memory."""
    places = []
    end = 0
    for name, tensor in bucket.items():
        places.append(
            TensorPlace(
                name=name,
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=tuple(tensor.shape),
                start=end,
                num_bytes=tensor.nbytes,
            )
        )
        end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    data = torch.zeros(end, dtype=torch.uint8)
    for place, tensor in zip(places, bucket.values(), strict=True):
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        data[place.start : place.start + place.num_bytes].copy_(flat)
    return PackedBucket(places=tuple(places), data=data.numpy())


def unpack(bucket: PackedBucket) -> dict[str, Tensor]:
    """Return copies of a bucket's tensors, the inverse of ``pack``.

    The object store's memory is read-only, and a write to a tensor in it would end the process without a message.
    """
    data = torch.from_numpy(bucket.data.copy())
    return {
        place.name: data[place.start : place.start + place.num_bytes]
        .view(getattr(torch, place.dtype))
        .reshape(place.shape)
        for place in bucket.places
    }


class FetchedWeights:
    """A ``WeightSource`` over buckets that this process has fetched from the object store."""

    def __init__(self, buckets: Iterable[PackedBucket]) -> None:
        self._buckets = list(buckets)

    def module(self) -> None:
        """Return None: the live module is in another process."""

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        """Yield a copy of one bucket at a time, so that a receiver that keeps none has one copy in memory."""
        for bucket in self._buckets:
            yield unpack(bucket)


class LinkedWeights:
    """A ``WeightSource`` over the buckets of one version that come by a link.

    Args:
        buckets: slots and bytes of each bucket, as they arrive.
        keep: copy all buckets first, to the host's memory, so that they can be read twice. Otherwise they can be read
            once, and the tensors of a bucket are valid until the next bucket comes.
    """

    def __init__(
        self, buckets: Iterator[tuple[Sequence[TensorSlot], Tensor]], *, keep: bool
    ) -> None:
        views = ({slot.name: slot.view(data) for slot in slots} for slots, data in buckets)
        self._kept: list[dict[str, Tensor]] | None = None
        self._coming = views
        if keep:
            self._kept = [
                {name: view.to("cpu", copy=True) for name, view in part.items()} for part in views
            ]

    def module(self) -> None:
        """Return None: the live module is in another process."""

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        """Yield the tensors of one bucket at a time, by Hugging Face name."""
        yield from self._coming if self._kept is None else self._kept
