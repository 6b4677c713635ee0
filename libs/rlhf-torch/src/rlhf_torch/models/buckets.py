"""Buckets: weights that are handed to an engine a few at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

BUCKET_BYTES = 512 * 2**20
"""Largest size of a bucket of several tensors."""


def buckets_of(weights: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Yield the weights in their order, in buckets of at most 512 MiB; a larger tensor is a bucket of its own."""
    bucket: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights:
        if bucket and size + tensor.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = tensor.detach()
        size += tensor.nbytes
    if bucket:
        yield bucket
