"""Digest of a set of weights, which is equal if the same names hold the same bits, on any device.

The digest is computed after every update of an engine's weights, so it has to be cheap. Each tensor is reduced to 64
bits on its own device, and only these bits are copied to the host. (SHA-256 of 3 GB would take longer than the update.)
The digest finds weights that are stale, mixed up or damaged; it does not protect against forged weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

WORD_BYTES = 4
CHUNK = 1 << 19
"""Number of words that have different keys: 2 MiB of a tensor. A CPU reduces one chunk at a time."""
CHUNKS_AT_ONCE = 8
"""Number of chunks that other devices reduce at a time, since starting work costs more there. Their products, 32 MiB,
stay in the cache of a large GPU."""

# Odd constants of splitmix64 (Steele, Lea and Flood 2014), as signed numbers.
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15

WeightSum = tuple[str, str, tuple[int, ...], int]
"""Name, dtype, shape and ``bits_digest`` of a weight."""

_made_keys: dict[torch.device, Tensor] = {}


def weights_digest(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Return the digest, 64 hexadecimal digits, of the name, dtype, shape and bits of each tensor.

    Order, device and strides do not change the digest; a flipped bit and two exchanged elements do. Tied weights count
    under each of their names. Tensors are read one at a time, so a generator of weights needs little memory.
    """
    return digest_of_sums(weight_sums(weights))


def weight_sums(weights: Iterable[tuple[str, Tensor]]) -> list[WeightSum]:
    """Return the name, dtype, shape and ``bits_digest`` of each tensor. Tensors are read one at a time."""
    found = [
        (name, str(tensor.dtype), tuple(tensor.shape), bits_digest(tensor))
        for name, tensor in weights
    ]
    totals = read_sums([total for *_, total in found])
    return [
        (name, dtype, shape, total)
        for (name, dtype, shape, _), total in zip(found, totals, strict=True)
    ]


def digest_of_sums(found: Iterable[WeightSum]) -> str:
    """Return the digest of tensors from the name, dtype, shape and ``bits_digest`` of each.

    The sum of a tensor may be the sum of its parts' ``held_bits_digest``, since sums count modulo 2^64.
    """
    lines = [
        f"{name}|{dtype}|{shape}|{(total + 2**63) % 2**64 - 2**63}\0"
        for name, dtype, shape, total in sorted(found)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@torch.no_grad()
def bits_digest(tensor: Tensor) -> Tensor:
    """Return the sum modulo 2^64 of the tensor's words of 4 bytes, each times a key, as an int64 scalar on the device.

    Word ``i`` counts ``key(i mod CHUNK) * STEP^(i div CHUNK)`` times. Both factors are odd, so whatever happens to a
    single word shows. This is multilinear hashing (Carter and Wegman 1979) with the outputs of splitmix64, made odd,
    in the place of random numbers.
    """
    return _weighted_sum(_words(tensor))


@torch.no_grad()
def held_bits_digest(tensor: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Return the part of ``bits_digest`` that the held elements make up, and the number of their words of 4 bytes.

    Both are int64 scalars on the device. If every word of a tensor is held in exactly one of several calls, the calls'
    sums add up to the ``bits_digest`` of the tensor.

    Args:
        held: True at the held elements, in the shape of the tensor. A word of which only a part is held does not count.
    """
    mask = _words(held.reshape(-1, 1).expand(-1, tensor.element_size()), fill=1)
    whole = mask.view(torch.uint8).view(-1, WORD_BYTES).all(dim=1)
    return _weighted_sum(_words(tensor), whole), whole.sum()


def num_words(num_bytes: int) -> int:
    """Return the number of 4-byte words of a tensor of ``num_bytes`` bytes."""
    return -(-num_bytes // WORD_BYTES)


def read_sums(sums: Sequence[Tensor]) -> list[int]:
    """Return the scalars as numbers. They are copied together, since each copy makes the host wait for the device."""
    if not sums:
        return []
    return torch.stack([one.to(sums[0].device) for one in sums]).tolist()


def _weighted_sum(words: Tensor, held: Tensor | None = None) -> Tensor:
    blocks = list(_blocks(words))
    if not blocks:
        return torch.zeros((), dtype=torch.int64, device=words.device)
    # All blocks use this buffer; the first block is the largest. On a CPU fresh memory costs more than the products.
    room = torch.empty(blocks[0][1], dtype=torch.int64, device=words.device)
    parts = []
    for start, end in blocks:
        products = room[: end - start].copy_(words[start:end])
        if held is not None:
            products.mul_(held[start:end])
        chunks = products.view(-1, min(CHUNK, end - start))
        parts.append(chunks.mul_(_keys(chunks.shape[1], words.device)).sum(dim=1))
    if words.numel() <= CHUNK:
        return parts[0][0]
    sums = torch.cat(parts)
    powers = torch.full_like(sums[1:], _STEP).cumprod(0)
    return sums[0] + (sums[1:] * powers).sum()


def _blocks(words: Tensor) -> Iterator[tuple[int, int]]:
    """Yield the first word and the end of each block: some whole chunks, and at last the rest of the tensor."""
    number, whole = words.numel(), words.numel() // CHUNK * CHUNK
    size = CHUNK * (1 if words.device.type == "cpu" else CHUNKS_AT_ONCE)
    for start in range(0, whole, size):
        yield start, min(start + size, whole)
    if whole < number:
        yield whole, number


def _keys(count: int, device: torch.device) -> Tensor:
    """Return the keys of the first ``count`` words of a chunk: output ``i`` of splitmix64 from state 0, made odd."""
    made = _made_keys.get(device)
    if made is None or made.numel() < count:
        size = min(CHUNK, 1 << (count - 1).bit_length())
        made = _mixed(torch.arange(1, size + 1, device=device).mul_(_STEP)).bitwise_or_(1)
        _made_keys[device] = made
    return made[:count]


def _mixed(values: Tensor) -> Tensor:
    """Spread each bit over the whole number, in place; shifts keep the sign."""
    values.bitwise_xor_(values >> 30).mul_(_FIRST)
    values.bitwise_xor_(values >> 27).mul_(_SECOND)
    return values.bitwise_xor_(values >> 31)


def _words(tensor: Tensor, fill: int = 0) -> Tensor:
    """Return the tensor's bytes as int32 words, the last word filled up with bytes ``fill``."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    missing = -flat.numel() % WORD_BYTES
    if missing:
        flat = torch.cat([flat, flat.new_full((missing,), fill)])
    elif flat.storage_offset() % WORD_BYTES:
        flat = flat.clone()
    return flat.view(torch.int32)
