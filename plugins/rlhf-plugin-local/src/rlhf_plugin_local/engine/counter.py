"""Uniform numbers as a function of (seed, token index): no state, so no order of arrival can change them."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_MASK_53 = (1 << 53) - 1


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
    return (_logical_shift(bits, 11) & _MASK_53).to(torch.float64) * 2.0**-53


def signed_seed(seed: int) -> int:
    """Return the signed 64-bit integer with the same bits as the low 64 bits of ``seed``."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _logical_shift(bits, 30)) * _MIX_1
    bits = (bits ^ _logical_shift(bits, 27)) * _MIX_2
    return bits ^ _logical_shift(bits, 31)


def _logical_shift(bits: Tensor, by: int) -> Tensor:
    # torch shifts int64 arithmetically; the mask clears the copies of the sign bit.
    return (bits >> by) & ((1 << (64 - by)) - 1)
