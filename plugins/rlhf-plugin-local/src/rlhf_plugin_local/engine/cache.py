"""The KV cache: one static row per slot and layer, and the attention of a decode step, which fills and reads it.

Axes: ``R`` rows decoded together, ``S`` rows of the cache, ``L`` positions, ``H`` query heads, ``H_kv`` key heads,
``G`` query heads per key head, ``K`` head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf_torch.recurrent.sequences import Sequences


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


class DecodeLayout:
    """Appends each row's key and value to the cache and attends to the row's first ``position + 1`` entries.

    Args:
        positions: (R,) of the tokens that are fed; rows 0 to R - 1 of the cache are theirs.
        used: L, at least the largest position + 1. The bits of a row do not depend on it: what is masked adds exact
            zeros at the end of each sum (measured on CPU, float32 and bfloat16).
        compute_dtype: what keys, values and queries are rounded to, as the trainer's attention does.
        sequences: what recurrent layers ask; None: the model has none.
    """

    def __init__(
        self,
        cache: KVCache,
        positions: Tensor,
        used: int,
        compute_dtype: torch.dtype,
        sequences: Sequences | None = None,
    ) -> None:
        self.sequences = sequences
        self.cache = cache
        self.positions = positions
        self.used = used
        self.compute_dtype = compute_dtype
        self.rows = torch.arange(len(positions), device=positions.device)
        self._index: dict[int, Tensor] = {}
        self._masks: dict[int | None, Tensor] = {}

    def sequence_lengths(self, at_least: int) -> Tensor:
        """(R,) ``at_least`` everywhere: what the engine serves is no longer than lengths that matter."""
        return torch.full((len(self.rows),), at_least)

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
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return (1, R, H, K) for query (1, H, R, K), key and value (1, H_kv, R, K)."""
        cache, used = self.cache, self.used
        R, H, H_kv = query.shape[2], query.shape[1], key.shape[1]
        if H_kv not in self._index:
            self._index[H_kv] = cache.index(H_kv, self.rows, self.positions)
        queries, new_keys, new_values = (
            part[0].transpose(0, 1).to(self.compute_dtype) for part in (query, key, value)
        )  # (R, heads, K)
        cache.write(layer, new_keys, new_values, self._index[H_kv])
        keys, values = cache.keys[layer][:R, :, :used], cache.values[layer][:R, :, :used]
        grouped = queries.to(cache.dtype).reshape(R, H_kv, H // H_kv, -1)  # (R, H_kv, G, K)
        mask = self._mask(sliding_window)  # (R, 1, 1, L)
        # Under autocast the products below would be rounded to the compute dtype once more.
        with torch.autocast(query.device.type, enabled=False):
            if softcap is None and sinks is None and query.device.type != "cpu":
                output = F.scaled_dot_product_attention(
                    grouped,
                    keys,
                    values,
                    attn_mask=mask.expand(-1, -1, H // H_kv, -1),
                    scale=scaling,
                )
            else:
                output = _attention(grouped, keys, values, mask, scaling, softcap, sinks)
        # The next matmul takes weights of this type: without autocast it refuses any other.
        return output.reshape(1, R, H, -1).to(self.compute_dtype)

    def _mask(self, window: int | None) -> Tensor:
        """(R, 1, 1, L) 0 where the row may look, -inf elsewhere."""
        if window not in self._masks:
            behind = self.positions[:, None] - torch.arange(self.used, device=self.positions.device)
            hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)  # (R, L)
            mask = torch.zeros(hidden.shape, dtype=self.cache.dtype, device=hidden.device)
            self._masks[window] = mask.masked_fill_(hidden, -torch.inf)[:, None, None]
        return self._masks[window]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """softmax(cap(scaling q k^T) + mask) v by plain products, in float32.

    With one query per row these take a quarter of the time of torch's fused CPU kernel (256 rows, 96 positions).
    Query (R, H_kv, G, K), key and value (R, H_kv, L, K), result (R, H_kv, G, K).
    """
    R, H_kv = query.shape[:2]
    queries, keys, values = (part.flatten(0, 1).float() for part in (query, key, value))
    scores = torch.bmm(queries, keys.transpose(1, 2))  # (R*H_kv, G, L)
    scores.mul_(scaling)
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    scores.view(R, H_kv, *scores.shape[1:]).add_(mask)
    if sinks is not None:  # one more score of each head, with no value behind it
        own = (
            sinks.float().view(1, H_kv, -1, 1).expand(R, -1, -1, -1).flatten(0, 1)
        )  # (R*H_kv, G, 1)
        scores = torch.cat([scores, own], dim=-1)
    weights = scores.softmax(dim=-1)[..., : values.shape[1]]
    attended: Tensor = torch.bmm(weights, values).unflatten(0, (R, H_kv))
    return attended
