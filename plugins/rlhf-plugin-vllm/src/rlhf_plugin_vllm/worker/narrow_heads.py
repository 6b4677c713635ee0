"""Attention heads of sizes that vLLM's CPU kernel does not have, run in wider ones.

Zeros are appended to query, key and value. Scores stay as they are, because the scale is a number of its own; the
columns that zeros gave are cut off again. Only small models have such heads.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend


def widen(attention: Any) -> None:
    """Have one of vLLM's attention layers compute in the next size that the kernel has.

    Raises:
        ValueError: the heads are larger than any size of the kernel.
    """
    sizes = sorted(CPUAttentionBackend.get_supported_head_sizes())
    narrow = attention.head_size
    at = bisect_left(sizes, narrow)
    if at == len(sizes):
        raise ValueError(f"attention heads of size {narrow}: vLLM on a CPU has at most {sizes[-1]}")
    wide = sizes[at]
    if wide == narrow:
        return

    def pad(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(_resized(part, narrow, wide) for part in inputs)

    def cut(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output.unflatten(-1, (-1, wide))[..., :narrow].flatten(-2)

    attention.head_size = attention.head_size_v = attention.impl.head_size = wide
    attention.register_forward_pre_hook(pad)
    attention.register_forward_hook(cut)


def _resized(heads: Tensor, narrow: int, wide: int) -> Tensor:
    """(N, H * narrow) -> (N, H * wide)"""
    return F.pad(heads.unflatten(-1, (-1, narrow)), (0, wide - narrow)).flatten(-2)
