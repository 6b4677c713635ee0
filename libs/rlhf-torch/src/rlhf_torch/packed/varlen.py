"""Torch's kernel for sequences of different lengths that lie one after the other: where it is, and its call.

Axes: ``N`` queries and ``M`` keys of all sequences, ``b`` sequences, ``H`` and ``H_kv`` heads, ``D_head`` size of a
head.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlhf_core.objective import on_device


class Extents(NamedTuple):
    """Where each sequence lies in a row."""

    offsets: Tensor
    """(b + 1,) int32, on the device: sequence i is ``row[offsets[i]:offsets[i + 1]]``."""
    longest: int
    """Length of the longest sequence."""

    @classmethod
    def of(cls, lengths: Tensor, device: torch.device) -> Extents:
        """Return the extents of sequences of the given lengths (b,), which are on the host."""
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return cls(on_device(offsets.to(torch.int32), device), int(lengths.max()))


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Extents,
    keys: Extents,
    scaling: float,
    window: int | None,
) -> Tensor:
    """Return the causal attention (N, H, D_head) within each sequence; its last query is at its last key.

    Args:
        query: (N, H, D_head).
        key: (M, H_kv, D_head), like ``value``.
        queries: of the sequences' queries, which are fewer than their keys where earlier ones were computed elsewhere.
        window: number of positions that a query sees, its own among them; None: all.
    """
    from torch.nn.attention.varlen import varlen_attn

    # The kernel lets query heads share keys and values; torch 2.12 and later need the flag for that.
    options: dict[str, Any] = {"enable_gqa": True} if _takes_gqa() else {}
    output = varlen_attn(
        query,
        key,
        value,
        queries.offsets,
        keys.offsets,
        queries.longest,
        keys.longest,
        scale=scaling,
        window_size=((window or 0) - 1, 0),  # -1: as far back as the sequence goes
        **options,
    )
    assert isinstance(output, Tensor)
    return output


@cache
def is_there() -> bool:
    """Return whether this torch has the kernel."""
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: F401
    except ImportError:
        return False
    return True


@cache
def _takes_gqa() -> bool:
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters
