"""Attention of one decode step over paged keys and values.

Axes: ``R`` rows, ``L`` positions of a row's pages, ``G`` query heads per key head, ``K`` head dimension.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from rlhf_torch.recurrent.sequences import Sequences

from .paged_cache import PagedCache
from .pages import PAGE


class PagedDecode:
    """Appends each row's key and value to its pages, and attends to the row's first ``position + 1`` entries.

    Args:
        positions: (R,) of the tokens that are fed, on the device; rows 0 to R - 1 of the cache are theirs.
        compute_dtype: what keys, values and queries are rounded to, as the trainer's attention does.
        sequences: what recurrent layers ask; None: the model has none.
    """

    def __init__(
        self,
        cache: PagedCache,
        positions: Tensor,
        compute_dtype: torch.dtype,
        sequences: Sequences | None = None,
    ) -> None:
        self.sequences = sequences
        self.cache = cache
        self.positions = positions
        self.compute_dtype = compute_dtype

    def sequence_lengths(self, at_least: int) -> Tensor:
        """(R,) ``at_least`` everywhere: what the engine serves is no longer than lengths that matter."""
        return torch.full((len(self.positions),), at_least)

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
        queries, keys, values = (
            part[0].transpose(0, 1).to(self.compute_dtype) for part in (query, key, value)
        )  # (R, heads, K)
        stores = self.cache.stores(layer, keys, values)
        with torch.autocast(query.device.type, enabled=False):
            if query.device.type == "cuda" and sinks is None:
                from .attention_kernel import decode_attention
            else:
                decode_attention = partial(plain_decode_attention, sinks=sinks)
            output = decode_attention(
                queries,
                keys,
                values,
                *stores,
                self.cache.table,
                self.positions,
                scaling,
                sliding_window,
                softcap,
            )
        return output[None]


def plain_decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    positions: Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Store each row's key and value, and return the attention of its query: softmax(cap(scaling q k^T)) v, in float32.

    The kernel's meaning in plain products; what runs where there is no kernel. It gathers all pages of a row.

    Args:
        query: (R, H, K).
        key: (R, H_kv, K) of the row's own position, like ``value``.
        keys: (num_pages, H_kv, PAGE, K), like ``values``; the new ones are written there.
        table: (S, B) pages of each row, R of them used.
        positions: (R,) of the query in its row.
        window: number of positions that a query sees, its own among them; None: all.
        softcap: bound of the scores; None: there is none.
        sinks: (H,) one more score of each head, with no value behind it, which the kernel lacks; None: there are none.

    Returns:
        (R, H, K) in the dtype of the query.
    """
    R, H, K = query.shape
    H_kv = key.shape[1]
    rows = torch.arange(R, device=query.device)
    pages = table[rows, positions // PAGE].long()
    keys[pages, :, positions % PAGE] = key.to(keys.dtype)
    values[pages, :, positions % PAGE] = value.to(values.dtype)
    used = table[:R].long()
    all_keys, all_values = (
        store[used].transpose(1, 2).flatten(2, 3).float() for store in (keys, values)
    )  # (R, H_kv, L, K)
    grouped = query.float().reshape(R, H_kv, H // H_kv, K)
    scores = grouped @ all_keys.transpose(-1, -2) * scaling  # (R, H_kv, G, L)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    behind = positions[:, None] - torch.arange(all_keys.shape[2], device=query.device)  # (R, L)
    hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
    scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
    if sinks is not None:
        own = sinks.float().view(1, H_kv, -1, 1).expand(R, -1, -1, -1)  # (R, H_kv, G, 1)
        scores = torch.cat([scores, own], dim=-1)
    weights = scores.softmax(dim=-1)[..., : all_values.shape[2]]
    output = weights @ all_values  # (R, H_kv, G, K)
    return output.reshape(R, H, K).to(query.dtype)
