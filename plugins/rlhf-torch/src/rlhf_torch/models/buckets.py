"""Weights a few at a time, on their way to an engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

BUCKET_BYTES = 512 * 2**20


def buckets_of(weights: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Yield the weights in their order, at most 512 MiB at a time unless one tensor is larger."""
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
