"""Random numbers as a function of (seed, token index): no state, so no order of arrival can change them."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def uniforms(seeds: Int64[Tensor, " r"], index: Int64[Tensor, " r"]) -> Float64[Tensor, " r"]:
    """Return u in [0, 1) for each (seed, index): ``mix(mix(seed) + golden * (index + 1)) >> 11`` over 2**53.

    The seed is mixed before the index is added, so that seeds that differ by a multiple of the increment do not
    give shifted copies of one sequence. Integer arithmetic only: the same on every device, to the bit.

    Args:
        seeds: 64 bits, as signed integers (``signed_seed``).
        index: position of the token in its completion, from 0.

    Source: Steele, Lea and Flood 2014 (SplitMix64); the finaliser is Stafford's variant 13.
    """
    bits = _mix(_mix(seeds) + _GOLDEN * (index + 1))
    return _logical_shift(bits, 11).to(torch.float64) * 2.0**-53


def exponentials(
    seeds: Int64[Tensor, " r"], index: Int64[Tensor, " r"], count: int
) -> Float64[Tensor, "r n"]:
    """Return ``-log(u)`` at the places 0 to ``count - 1`` of each (seed, index): independent, exponential of mean 1.

    ``u = (k + 1/2) / 2**52``, with ``k`` the upper 52 bits of ``mix(mix(state) + golden * (place + 1))``; ``state`` is
    what ``uniforms`` mixes for its number. The half keeps u between 2**-53 and 1 - 2**-53, each of them exact in
    float64, so no number is 0 or infinite.

    Of n equal candidates the smallest number is about 1 / n. Neighbors among the values of u are 2**-52 apart, so
    among 1024 candidates the smallest two are equal, and the lower place wins without reason, about once in 4e12
    draws. With the 24 bits of float32 it would be once in 16 thousand.

    Source: the same as of ``uniforms``, with the state of a token as the seed of its places.
    """
    place = torch.arange(1, count + 1, device=seeds.device)  # (N,)
    state = _mix(seeds) + _GOLDEN * (index + 1)  # (R,)
    bits = _mix(_mix(state)[:, None] + _GOLDEN * place)  # (R, N)
    upper = _logical_shift(bits, 12).to(torch.float64)
    return upper.add_(0.5).mul_(2.0**-52).log_().neg_()


def signed_seed(seed: int) -> int:
    """Return the signed 64-bit integer with the same bits as the low 64 bits of ``seed``."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _mix(bits: Tensor) -> Tensor:
    # In place behind the first operation: new memory costs more than the arithmetic.
    bits = (bits ^ _logical_shift(bits, 30)).mul_(_MIX_1)
    bits = bits.bitwise_xor_(_logical_shift(bits, 27)).mul_(_MIX_2)
    return bits.bitwise_xor_(_logical_shift(bits, 31))


def _logical_shift(bits: Tensor, by: int) -> Tensor:
    # torch shifts int64 arithmetically; the mask clears the copies of the sign bit.
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)
