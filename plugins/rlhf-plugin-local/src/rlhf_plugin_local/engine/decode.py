"""Attention of one decode step: each row's single query over its own row of the cache.

Axes: ``R`` rows, ``L`` positions read, ``G`` query heads per key head, ``K`` head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf_torch.recurrent.sequences import Sequences

from .cache import KVCache


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
