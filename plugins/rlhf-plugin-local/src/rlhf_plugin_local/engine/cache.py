"""The KV cache: one static row per slot and layer, and the two layouts that fill and read it.

Axes: ``R`` rows decoded together, ``S`` rows of the cache, ``L`` positions, ``H`` query heads, ``H_kv`` key heads,
``K`` head dimension, ``N`` packed prompt tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is at least ``number``."""
    return -(-number // multiple) * multiple


class KVCache:
    """Keys and values (S, H_kv, L, K) per layer, allocated when a layer first writes.

    Shapes are learned from what the layers write, so layers may differ in heads and head dimension.

    Args:
        num_rows: S.
        block: capacity is a multiple of this many positions.
        dtype: of what is stored, see ``storage_dtype``.
    """

    def __init__(self, num_rows: int, block: int, dtype: torch.dtype, device: torch.device) -> None:
        self.num_rows = num_rows
        self.block = block
        self.dtype = dtype
        self.device = device
        self.capacity = 0
        """L: positions that each row has room for."""
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions in each row, keeping what is stored."""
        if length <= self.capacity:
            return
        # By half as much again at least, so that all copies together move no more than 3 times the final size.
        self.capacity = round_up(max(length, self.capacity * 3 // 2), self.block)
        for store in (self.keys, self.values):
            for layer, old in store.items():
                store[layer] = self._empty(old.shape[1], old.shape[3])
                store[layer][:, :, : old.shape[2]] = old

    def index(self, num_heads: int, rows: Tensor, positions: Tensor) -> Tensor:
        """(M * H_kv,) where ``write`` puts M (row, position) pairs, all different; until the next ``reserve``."""
        heads = torch.arange(num_heads, device=self.device)
        return ((rows[:, None] * num_heads + heads) * self.capacity + positions[:, None]).flatten()

    def write(self, layer: int, key: Tensor, value: Tensor, index: Tensor) -> None:
        """Store keys and values (M, H_kv, K) at ``index``."""
        if layer not in self.keys:
            self.keys[layer] = self._empty(key.shape[1], key.shape[2])
            self.values[layer] = self._empty(value.shape[1], value.shape[2])
        for store, new in ((self.keys[layer], key), (self.values[layer], value)):
            flat = new.to(self.dtype).reshape(-1, new.shape[-1])
            store.view(-1, store.shape[-1]).index_copy_(0, index, flat)

    def move(self, source: Tensor, target: Tensor, used: int) -> None:
        """Copy the first ``used`` positions of the rows ``source`` onto the rows ``target``."""
        for store in (*self.keys.values(), *self.values.values()):
            store[target, :, :used] = store[source, :, :used]

    def erase(self, row: int) -> None:
        """Set a row to zeros: what is not a number would get past the mask of the row's next sequence."""
        for store in (*self.keys.values(), *self.values.values()):
            store[row] = 0

    def clear(self) -> None:
        """Free the memory."""
        self.keys.clear()
        self.values.clear()
        self.capacity = 0

    def _empty(self, num_heads: int, head_dim: int) -> Tensor:
        # Zeros, not garbage: masked positions enter products with probability 0, and 0 * nan is nan.
        shape = (self.num_rows, num_heads, self.capacity, head_dim)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


def storage_dtype(compute_dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of the cache: that of the computation, on a CPU always float32.

    Batched products of a few rows are as fast in float32 there, and scores and sums keep float32 precision, as they
    do inside the trainer's fused kernels.
    """
    return torch.float32 if device.type == "cpu" else compute_dtype
