"""Weights in the process of an engine: out of the object store, in which a bucket is one array of bytes that processes
share without copies, or out of a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.weights import Slot

if TYPE_CHECKING:
    import ray

ALIGNMENT = 64
"""Bytes; every tensor starts at a multiple, so that its bytes can be viewed as its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """Where in a bucket's bytes a tensor is."""

    name: str
    """Its Hugging Face name."""
    dtype: str
    """As in ``torch.DTYPE``."""
    shape: tuple[int, ...]
    start: int
    """First byte."""
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBucket:
    """Some weights."""

    places: tuple[TensorPlace, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One version of the policy's weights in the object store."""

    version: int
    buckets: Sequence[ray.ObjectRef]
    """Of ``PackedBucket``; sent as they are, fetched by who needs them."""


def pack(bucket: Mapping[str, Tensor]) -> PackedBucket:
    """Return a copy of the tensors' bits, in memory of the host."""
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
    """Invert ``pack``. The tensors are a copy: the object store's memory is read-only, and writing to it would end
    the process without a message."""
    data = torch.from_numpy(bucket.data.copy())
    return {
        place.name: data[place.start : place.start + place.num_bytes]
        .view(getattr(torch, place.dtype))
        .reshape(place.shape)
        for place in bucket.places
    }


class FetchedWeights:
    """Buckets that are in this process already, as a ``WeightSource``."""

    def __init__(self, buckets: Iterable[PackedBucket]) -> None:
        self._buckets = list(buckets)

    def module(self) -> None:
        """The live module is in another process."""

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        """Yield one bucket at a time; only one copy is alive if the receiver keeps none."""
        for bucket in self._buckets:
            yield unpack(bucket)


class LinkedWeights:
    """The buckets of one update by a link, as a ``WeightSource``.

    Args:
        keep: copy them, so that they can be read twice. Else they are read once, and each only until the next comes.
    """

    def __init__(self, buckets: Iterator[tuple[Sequence[Slot], Tensor]], *, keep: bool) -> None:
        views = ({slot.name: slot.view(data) for slot in slots} for slots, data in buckets)
        self._kept: list[dict[str, Tensor]] | None = None
        self._coming = views
        if keep:
            self._kept = [{name: view.clone() for name, view in part.items()} for part in views]

    def module(self) -> None:
        """The live module is in another process."""

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        """Yield the weights, as they come unless they are kept."""
        yield from self._coming if self._kept is None else self._kept
