"""Prompts whose beginning is in the cache: only what follows is computed, with the keys of all.

Axes: ``m`` computed tokens of a prompt, ``T`` its tokens, ``N`` computed tokens of all prompts, ``K`` head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf_torch.packed.score_matrix import attention_with_sinks, materialized_attention, tail_mask

from ..prefill import CacheTargets, CacheWriter
from .paged_cache import PagedCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """One prompt in the row of tokens that are computed."""

    length: int
    """Tokens of it in the row, those that fill up a multiple among them."""
    pages: Sequence[int]
    """Pages of its beginning, all of them full; empty where nothing is known."""


class ResumedPrefill:
    """Causal attention of each prompt's new tokens with its whole; their keys and values also go to the cache.

    Each prompt is a call of its own, since beginnings differ in length. That is plain torch on every device.

    Args:
        prompts: in the order of the row.
        compute_dtype: what keys, values and queries are rounded to, as the trainer's attention does.
    """

    def __init__(
        self,
        prompts: Sequence[Resumed],
        targets: CacheTargets,
        cache: PagedCache,
        compute_dtype: torch.dtype,
    ) -> None:
        self.cache = cache
        self.compute_dtype = compute_dtype
        self._writer = CacheWriter(targets, cache, compute_dtype)
        self._lengths = [prompt.length for prompt in prompts]
        self._pages = [
            torch.tensor(prompt.pages, dtype=torch.int64, device=cache.device) for prompt in prompts
        ]
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}

    def sequence_lengths(self, at_least: int) -> Tensor:
        """(N,) ``at_least`` everywhere: what the engine serves is no longer than lengths that matter."""
        return torch.full((sum(self._lengths),), at_least)

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
        """Return (1, N, H, K) for query (1, H, N, K), key and value (1, H_kv, N, K)."""
        self._writer.write(layer, key, value)
        query, key, value = (part.to(self.compute_dtype) for part in (query, key, value))
        split = (part.split(self._lengths, dim=2) for part in (query, key, value))
        outputs = []
        for pages, own_query, own_key, own_value in zip(self._pages, *split, strict=True):
            all_keys = self._with_beginning(self.cache.keys[layer], pages, own_key)
            all_values = self._with_beginning(self.cache.values[layer], pages, own_value)
            mask = self._mask(own_query.shape[2], all_keys.shape[2], sliding_window)
            parts = (own_query, all_keys, all_values)
            outputs.append(_attention(*parts, mask, scaling, softcap, sinks))
        return torch.cat(outputs, dim=2).transpose(1, 2)

    def _with_beginning(self, store: Tensor, pages: Tensor, own: Tensor) -> Tensor:
        """Return the keys or values (1, H_kv, T, K) of a whole prompt."""
        if not len(pages):
            return own
        beginning = store[pages].transpose(0, 1).flatten(1, 2)[None]  # (1, H_kv, pages * PAGE, K)
        return torch.cat([beginning.to(own.dtype), own], dim=2)

    def _mask(self, own: int, length: int, window: int | None) -> Tensor:
        """Return (m, T): True where the query may see the key; the last query is at the last key."""
        shape = (own, length, window)
        if shape not in self._masks:
            self._masks[shape] = tail_mask(*shape, self.cache.device)
        return self._masks[shape]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """softmax(cap(scaling q k^T) + mask) v for query (1, H, m, K), key and value (1, H_kv, T, K)."""
    with torch.autocast(query.device.type, enabled=False):
        if sinks is not None:
            return attention_with_sinks(query, key, value, mask, scaling, softcap, sinks)
        if softcap is not None:
            return materialized_attention(query, key, value, mask, scaling, softcap)
        groups = query.shape[1] // key.shape[1]
        # No fused GPU kernel takes a mask and lets heads share keys.
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
