"""One digest for a set of weights, equal wherever the same names hold the same bits, on whatever device they are.

It is taken after every update of an engine, so it has to be cheap: each tensor is reduced to 64 bits where it lies, and
only those are brought to the host. (SHA-256 of 3 GB would take longer than the update.) It finds weights that are
stale, mixed up or damaged; it is no protection against somebody who wants to forge one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

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
    return digest_of_sums(
        (name, str(dtype), shape, int(total)) for name, dtype, shape, total in found
    )


def digest_of_sums(found: Iterable[tuple[str, str, tuple[int, ...], int]]) -> str:
    """Return the digest of tensors of which the name, dtype, shape and ``bits_digest`` are known.

    Sums of parts, by ``held_bits_digest``, may be added: they count modulo 2^64.
    """
    lines = [
        f"{name}|{dtype}|{shape}|{(total + 2**63) % 2**64 - 2**63}\0"
        for name, dtype, shape, total in sorted(found)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@torch.no_grad()
def bits_digest(tensor: Tensor) -> Tensor:
    """Return the sum, modulo 2^64, of a mix of each 8 bytes and their position, as an int64 scalar on the device."""
    words = _words(tensor)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start, end in _chunks(words):
        total += _mixed_words(words, start, end).sum()
    return total


@torch.no_grad()
def held_bits_digest(tensor: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Return the part of ``bits_digest`` that some elements make up, and the number of their words of 8 bytes.

    The sums of parts that have no word in common, and together all, add up to that of the whole. Both are int64
    scalars on the device.

    Args:
        held: of the tensor's shape, True at these elements. A word of which only a part is held does not count.
    """
    words = _words(tensor)
    mask = _words(held.reshape(-1, 1).expand(-1, tensor.element_size()), fill=1).view(torch.uint8)
    whole = mask.view(-1, 8).all(dim=1)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start, end in _chunks(words):
        total += (_mixed_words(words, start, end) * whole[start:end]).sum()
    return total, whole.sum()


def num_words(num_bytes: int) -> int:
    """Words of 8 bytes that a tensor of so many bytes counts as."""
    return -(-num_bytes // 8)


def _chunks(words: Tensor) -> Iterator[tuple[int, int]]:
    for start in range(0, len(words), CHUNK):
        yield start, min(start + CHUNK, len(words))


def _mixed_words(words: Tensor, start: int, end: int) -> Tensor:
    positions = torch.arange(start + 1, end + 1, device=words.device)
    return _mixed(positions.mul_(_STEP).add_(words[start:end]))


def _mixed(values: Tensor) -> Tensor:
    """Spread each bit over the whole word, in place."""
    values.bitwise_xor_(values >> 30).mul_(_FIRST)
    values.bitwise_xor_(values >> 27).mul_(_SECOND)
    return values.bitwise_xor_(values >> 31)


def _words(tensor: Tensor, fill: int = 0) -> Tensor:
    """The tensor's bytes as int64, with bytes ``fill`` behind the last ones."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    missing = -len(flat) % 8
    if missing:
        flat = torch.cat([flat, flat.new_full((missing,), fill)])
    elif flat.storage_offset() % 8:
        flat = flat.clone()
    return flat.view(torch.int64)
