"""One digest for a set of weights, equal wherever the same names hold the same bits, on whatever device they are.

It is taken after every update of an engine, so it has to be cheap: each tensor is reduced to 64 bits where it lies, and
only those are brought to the host. (SHA-256 of 3 GB would take longer than the update.) It finds weights that are
stale, mixed up or damaged; it is no protection against somebody who wants to forge one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

CHUNK = 1 << 24
"""Words that are mixed at once: 128 MiB, and as much again for what the mixing needs."""

# Odd constants of the finalizer of splitmix64 (Steele, Lea and Flood 2014), as signed numbers.
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def weights_digest(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Return 64 hexadecimal digits made of (name, dtype, shape, bits) of each tensor.

    Neither order, device nor strides matter; a single flipped bit does, and so does an element that changed places.
    Tied weights count under each of their names. One tensor is looked at at a time, so a generator keeps memory small.
    """
    # The sums stay on the device until all are under way: to read one makes the host wait.
    found = [
        (name, tensor.dtype, tuple(tensor.shape), bits_digest(tensor)) for name, tensor in weights
    ]
    lines = [
        f"{name}|{dtype}|{shape}|{int(total)}\0"
        for name, dtype, shape, total in sorted(found, key=lambda one: one[0])
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@torch.no_grad()
def bits_digest(tensor: Tensor) -> Tensor:
    """Return the sum, modulo 2^64, of a mix of each 8 bytes and their position, as an int64 scalar on the device."""
    words = _words(tensor)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        positions = torch.arange(start + 1, start + 1 + len(part), device=words.device)
        total += _mixed(positions.mul_(_STEP).add_(part)).sum()
    return total


def _mixed(values: Tensor) -> Tensor:
    """Spread each bit over the whole word, in place."""
    values.bitwise_xor_(values >> 30).mul_(_FIRST)
    values.bitwise_xor_(values >> 27).mul_(_SECOND)
    return values.bitwise_xor_(values >> 31)


def _words(tensor: Tensor) -> Tensor:
    """The tensor's bytes as int64, with zeros behind the last ones."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    missing = -len(flat) % 8
    if missing:
        flat = torch.cat([flat, flat.new_zeros(missing)])
    elif flat.storage_offset() % 8:
        flat = flat.clone()
    return flat.view(torch.int64)
