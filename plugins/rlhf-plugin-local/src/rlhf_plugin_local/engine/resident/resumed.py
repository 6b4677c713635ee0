"""Prompts whose beginning is in the cache: only what follows is computed, with the keys of all.

Axes: ``P`` prompts, ``m`` computed tokens of a prompt, ``T`` its tokens, ``N`` computed tokens of all prompts, ``M``
tokens of all prompts, ``K`` head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf_torch.packed.packing import Blocks, has_varlen_kernel
from rlhf_torch.packed.score_matrix import attention_in_parts, tail_mask
from rlhf_torch.packed.varlen import Extents, varlen_attention
from rlhf_torch.recurrent.sequences import Sequences

from ..prefill import CacheWriter
from .paged_cache import PagedCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """One prompt in the row of tokens that are computed."""

    length: int
    """Tokens of it in the row, those that fill up a multiple among them."""
    pages: Sequence[int]
    """Pages of its beginning; empty where nothing is known."""
    known: int
    """Number of its tokens in ``pages``."""
    num_new: int
    """Tokens of it in the row that are its own."""
    row: int
    """Row of the cache whose pages get the new tokens."""


class ResumedPrefill:
    """Causal attention of each prompt's new tokens with its whole; their keys and values also go to the cache.

    One call computes all prompts where torch's kernel for different lengths is. Elsewhere each prompt is a call of its
    own, since beginnings differ in length.

    Args:
        prompts: in the order of the row.
        compute_dtype: what keys, values and queries are rounded to, as the trainer's attention does.
        sequences: what recurrent layers ask; None: the model has none.
        blocks: tokens of the row that see each other, as parts of one image; None: all tokens look back. What of an
            image is in the cache has seen the rest already.
    """

    def __init__(
        self,
        prompts: Sequence[Resumed],
        writer: CacheWriter,
        cache: PagedCache,
        compute_dtype: torch.dtype,
        *,
        sequences: Sequences | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        self.sequences = sequences
        self.cache = cache
        self.compute_dtype = compute_dtype
        self._writer = writer
        self._lengths = [prompt.length for prompt in prompts]
        self._pages = [
            torch.tensor(prompt.pages, dtype=torch.int64, device=cache.device) for prompt in prompts
        ]
        self._blocks = blocks
        self._own_blocks = None if blocks is None else blocks.split(self._lengths)
        self._masks: dict[tuple[int, ...], Tensor] = {}
        self._prompts = prompts

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
        ahead = self._blocks is not None and self._blocks.hold_for(sliding_window)
        if softcap is None and sinks is None and not ahead and has_varlen_kernel(query):
            return self._all.attend(layer, query, scaling, sliding_window)
        split = (part.split(self._lengths, dim=2) for part in (query, key, value))
        outputs = []
        for number, (own_query, own_key, own_value) in enumerate(zip(*split, strict=True)):
            all_keys = self._with_beginning(self.cache.keys[layer], number, own_key)
            all_values = self._with_beginning(self.cache.values[layer], number, own_value)
            mask = self._mask(number, all_keys.shape[2], sliding_window, ahead)
            parts = (own_query, all_keys, all_values)
            outputs.append(_attention(*parts, mask, scaling, softcap, sinks))
        return torch.cat(outputs, dim=2).transpose(1, 2)

    @cached_property
    def _all(self) -> _AllPrompts:
        return _AllPrompts(self._prompts, self.cache)

    def _with_beginning(self, store: Tensor, number: int, own: Tensor) -> Tensor:
        """Return the keys or values (1, H_kv, T, K) of a whole prompt."""
        pages, known = self._pages[number], self._prompts[number].known
        if not known:
            return own
        beginning = store[pages].transpose(0, 1).flatten(1, 2)[None]  # (1, H_kv, pages * PAGE, K)
        return torch.cat([beginning[:, :, :known].to(own.dtype), own], dim=2)

    def _mask(self, number: int, length: int, window: int | None, ahead: bool) -> Tensor:
        """Return (m, T): True where the query of a prompt may see the key; the last query is at the last key."""
        own = self._lengths[number]
        blocks = self._own_blocks[number].numbers if ahead and self._own_blocks else None
        # Without blocks a mask depends on the shape alone.
        key = (own, length, window or 0, -1 if blocks is None else number)
        if key not in self._masks:
            self._masks[key] = tail_mask(own, length, window, self.cache.device, blocks)
        return self._masks[key]


class _AllPrompts:
    """The prompts as one call of the kernel sees them, which reads all keys and values out of the cache."""

    def __init__(self, prompts: Sequence[Resumed], cache: PagedCache) -> None:
        self._cache = cache
        new = torch.tensor([prompt.length for prompt in prompts])  # (P,)
        known = torch.tensor([prompt.known for prompt in prompts])
        self._queries = Extents.of(new, cache.device)
        self._keys = Extents.of(known + new, cache.device)
        lengths = known + new
        starts = lengths.cumsum(0) - lengths
        positions = torch.arange(int(lengths.sum())) - starts.repeat_interleave(lengths)  # (M,)
        # What fills up a multiple is not in the cache. It may see any key: no token of a prompt sees it.
        last = known + torch.tensor([prompt.num_new for prompt in prompts]) - 1
        self._positions = positions.minimum(last.repeat_interleave(lengths)).to(cache.device)
        rows = torch.tensor([prompt.row for prompt in prompts])
        self._rows = rows.repeat_interleave(lengths).to(cache.device)
        self._places: dict[int, Tensor] = {}

    def attend(self, layer: int, query: Tensor, scaling: float, window: int | None) -> Tensor:
        """Return (1, N, H, K) for query (1, H, N, K); the layer's new keys and values are in the cache."""
        stores = (self._cache.keys[layer], self._cache.values[layer])
        keys, values = (self._read(store).to(query.dtype) for store in stores)
        rows = query[0].transpose(0, 1)  # (N, H, K)
        return varlen_attention(rows, keys, values, self._queries, self._keys, scaling, window)[
            None
        ]

    def _read(self, store: Tensor) -> Tensor:
        """Return the keys or values (M, H_kv, K) of all prompts."""
        heads = store.shape[1]
        if heads not in self._places:
            self._places[heads] = self._cache.index(heads, self._rows, self._positions)
        found = store.view(-1, store.shape[-1]).index_select(0, self._places[heads])
        return found.view(-1, heads, store.shape[-1])


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
        if sinks is not None or softcap is not None:
            return attention_in_parts(query, key, value, mask, scaling, softcap, sinks)
        groups = query.shape[1] // key.shape[1]
        # No fused GPU kernel takes a mask and lets heads share keys.
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
