"""Attention with heads of a size that vLLM's CPU kernel lacks, computed with wider heads.

Zeros are appended to query, key and value. The products of queries and keys do not change, and neither does the
softmax, since vLLM keeps the scale as a separate number. The columns of zeros are cut off the output. Only small models
have heads of such sizes.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend


def widen(attention: Any) -> None:
    """Make one of vLLM's attention layers compute with heads of the next larger size that the kernel has.

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

    attend = attention.forward

    def forward(
        query: Tensor, key: Tensor | None, value: Tensor | None, *rest: Any, **more: Any
    ) -> Tensor:
        # A layer with the keys and values of an earlier one gets none.
        padded = (
            None if part is None else _resized(part, narrow, wide) for part in (query, key, value)
        )
        output = attend(*padded, *rest, **more)
        heads = torch.unflatten(output, -1, (-1, wide))  # (N, H, wide)
        return heads[..., :narrow].flatten(-2)  # (N, H * narrow)

    attention.head_size = attention.head_size_v = attention.impl.head_size = wide
    # No hooks: models that vLLM takes from Transformers call `forward` itself.
    attention.forward = forward


def _resized(heads: Tensor, narrow: int, wide: int) -> Tensor:
    """Return (N, H * wide) heads with zeros appended to each, from (N, H * narrow) heads."""
    split = torch.unflatten(heads, -1, (-1, narrow))  # (N, H, narrow)
    return F.pad(split, (0, wide - narrow)).flatten(-2)
