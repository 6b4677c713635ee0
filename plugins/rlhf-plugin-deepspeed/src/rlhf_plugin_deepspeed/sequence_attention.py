"""Attention where each rank holds a slice of the tokens: ranks trade tokens for heads, attend, and trade back.

Between the two exchanges a rank has all tokens of a part of the heads, so the attention itself is the one of a single
rank. Everything else in a model works on one token at a time and never notices the slices.

Source: Jacobs et al. 2023 (DeepSpeed-Ulysses), arXiv:2309.14509.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf_core import ConfigError
from rlhf_plugin_local.attention import Layout
from rlhf_plugin_local.packing import as_matmul_inputs

from .rank_group import RankGroup


class SlicedLayout:
    """A layout of ``num_tokens`` tokens, of which each rank of the group has a slice.

    Args:
        whole: decides who attends to whom, given all tokens.
        num_tokens: without the padding that makes the slices equal.
    """

    def __init__(self, whole: Layout, num_tokens: int, group: RankGroup) -> None:
        self._whole, self._num_tokens, self._group = whole, num_tokens, group

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        sliding_window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Return (1, n, H, K) for query (1, H, n, K), key and value (1, H_kv, n, K) of n = N / size tokens."""
        # First of all, so that half as many bytes are sent where matmuls are in half precision.
        query, key, value = as_matmul_inputs(query, key, value)
        copies = math.lcm(key.shape[1], self._group.size) // key.shape[1]
        if copies > 1:  # fewer key heads than ranks: each is needed by several
            key, value = (part.repeat_interleave(copies, dim=1) for part in (key, value))
        if query.shape[-1] == value.shape[-1]:
            query, key, value = self._to_heads(query, key, value)
        else:
            (query, key), (value,) = self._to_heads(query, key), self._to_heads(value)
        output = self._whole.attend(
            layer,
            query,
            key,
            value,
            scaling=scaling,
            sliding_window=sliding_window,
            softcap=softcap,
        )
        return self._to_tokens(output)

    def _to_heads(self, *parts: Tensor) -> list[Tensor]:
        """Return (1, H / size, N, K) of all tokens for each (1, H, n, K), in one exchange."""
        size = self._group.size
        grouped = [part[0].unflatten(0, (size, -1)) for part in parts]  # (size, H / size, n, K)
        counts = [part.shape[1] for part in grouped]
        slices = self._group.exchange(torch.cat(grouped, dim=1))
        heads = slices.transpose(0, 1).flatten(1, 2)[
            :, : self._num_tokens
        ]  # (sum of H / size, N, K)
        return [part[None] for part in heads.split(counts)]

    def _to_tokens(self, output: Tensor) -> Tensor:
        """Return (1, n, H, K) of all heads for (1, N, H / size, K)."""
        size = self._group.size
        padding = -self._num_tokens % size
        slices = F.pad(output[0], (0, 0, 0, 0, 0, padding)).unflatten(0, (size, -1))
        heads = self._group.exchange(slices)  # (size, n, H / size, K)
        return heads.transpose(0, 1).flatten(1, 2)[None]


def check_heads(num_heads: int, size: int) -> None:
    """Refuse a model whose heads cannot be dealt out evenly.

    Raises:
        ConfigError: with both numbers.
    """
    if num_heads % size:
        fitting = ", ".join(str(n) for n in range(1, num_heads + 1) if num_heads % n == 0)
        raise ConfigError(
            f"sequence_parallel {size} with a model of {num_heads} attention heads: between two exchanges each rank "
            f"computes a part of the heads, so it must divide them. Set --backend.deepspeed.sequence_parallel to one "
            f"of {fitting}."
        )
