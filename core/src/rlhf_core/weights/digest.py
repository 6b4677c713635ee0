"""One digest for a set of weights, equal wherever the same names hold the same bits, on whatever device they are.

It is taken after every update of an engine, so it has to be cheap: each tensor is reduced to 64 bits where it lies, and
only those are brought to the host. (SHA-256 of 3 GB would take longer than the update.) It finds weights that are
stale, mixed up or damaged; it is no protection against somebody who wants to forge one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

WORD_BYTES = 4
CHUNK = 1 << 19
"""Words that have keys of their own: 2 MiB of a tensor. On a CPU as many are looked at at once."""
CHUNKS_AT_ONCE = 8
"""On other devices, where starting work costs more; the products, 32 MiB, stay in the cache of a large GPU."""

# Odd constants of splitmix64 (Steele, Lea and Flood 2014), as signed numbers.
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15

_made_keys: dict[torch.device, Tensor] = {}


def weights_digest(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Return 64 hexadecimal digits made of (name, dtype, shape, bits) of each tensor.

    Neither order, device nor strides matter; a single flipped bit does, and so does an element that changed places.
    Tied weights count under each of their names. One tensor is looked at at a time, so a generator keeps memory small.
    """
    found = [
        (name, str(tensor.dtype), tuple(tensor.shape), bits_digest(tensor))
        for name, tensor in weights
    ]
    totals = read_sums([total for *_, total in found])
    return digest_of_sums(
        (name, dtype, shape, total)
        for (name, dtype, shape, _), total in zip(found, totals, strict=True)
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
    """Return the sum modulo 2^64 of the tensor's words of 4 bytes, each times a key, as an int64 scalar on the device.

    Word ``i`` counts ``key(i mod CHUNK) * STEP^(i div CHUNK)`` times. Both factors are odd, so whatever happens to a
    single word shows. This is multilinear hashing (Carter and Wegman 1979) with the outputs of splitmix64, made odd,
    in the place of random numbers.
    """
    return _weighted_sum(_words(tensor))


@torch.no_grad()
def held_bits_digest(tensor: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Return the part of ``bits_digest`` that some elements make up, and the number of their words of 4 bytes.

    The sums of parts that have no word in common, and together all, add up to that of the whole. Both are int64
    scalars on the device.

    Args:
        held: of the tensor's shape, True at these elements. A word of which only a part is held does not count.
    """
    mask = _words(held.reshape(-1, 1).expand(-1, tensor.element_size()), fill=1)
    whole = mask.view(torch.uint8).view(-1, WORD_BYTES).all(dim=1)
    return _weighted_sum(_words(tensor), whole), whole.sum()


def num_words(num_bytes: int) -> int:
    """Words of 4 bytes that a tensor of so many bytes counts as."""
    return -(-num_bytes // WORD_BYTES)


def read_sums(sums: Sequence[Tensor]) -> list[int]:
    """Bring scalars to the host, all at once: to read one makes the host wait for all that is under way."""
    if not sums:
        return []
    return torch.stack([one.to(sums[0].device) for one in sums]).tolist()


def _weighted_sum(words: Tensor, held: Tensor | None = None) -> Tensor:
    blocks = list(_blocks(words))
    if not blocks:
        return torch.zeros((), dtype=torch.int64, device=words.device)
    # For all blocks, the first of which is the largest: on a CPU fresh memory costs more than the work in it.
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
    """First and last words of some whole chunks, and of the rest."""
    number, whole = words.numel(), words.numel() // CHUNK * CHUNK
    size = CHUNK * (1 if words.device.type == "cpu" else CHUNKS_AT_ONCE)
    for start in range(0, whole, size):
        yield start, min(start + size, whole)
    if whole < number:
        yield whole, number


def _keys(count: int, device: torch.device) -> Tensor:
    """The keys of the first words of a chunk: output ``i`` of splitmix64 from state 0, made odd."""
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
    """The tensor's bytes as int32, with bytes ``fill`` behind the last ones."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    missing = -flat.numel() % WORD_BYTES
    if missing:
        flat = torch.cat([flat, flat.new_full((missing,), fill)])
    elif flat.storage_offset() % WORD_BYTES:
        flat = flat.clone()
    return flat.view(torch.int32)
