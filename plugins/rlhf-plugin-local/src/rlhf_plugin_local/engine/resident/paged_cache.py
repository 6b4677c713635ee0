"""Keys and values in pages, and for each row of the batch the list of its pages.

Axes: ``S`` rows, ``B`` pages of a row at most, ``M`` tokens that are written, or pages, ``K`` head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .pages import PAGE, SCRATCH


class PagedCache:
    """Keys and values (num_pages, H_kv, PAGE, K) per layer, allocated when a layer first writes.

    Shapes are learned from what the layers write, so layers may differ in heads and head dimension.

    Args:
        num_rows: S.
        pages_per_row: B.
        dtype: of what is stored.
    """

    def __init__(
        self,
        num_rows: int,
        pages_per_row: int,
        num_pages: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_pages = num_pages
        self.dtype = dtype
        self.device = device
        self.table = torch.full(
            (num_rows, pages_per_row), SCRATCH, dtype=torch.int32, device=device
        )
        """(S, B) page of each stretch of ``PAGE`` tokens of each row."""
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def seat(self, first_row: int, pages: Sequence[Sequence[int]]) -> None:
        """Give the rows from ``first_row`` on their pages."""
        width = self.table.shape[1]
        rows = [[*own, *[SCRATCH] * (width - len(own))] for own in pages]
        new = torch.tensor(rows, dtype=torch.int32, device=self.device)
        self.table[first_row : first_row + len(rows)] = new

    def move(self, source: Tensor, target: Tensor) -> None:
        """Give the rows ``target`` the pages of the rows ``source``."""
        self.table[target] = self.table[source]

    def leave(self, first_row: int) -> None:
        """Take their pages from the rows from ``first_row`` on."""
        self.table[first_row:] = SCRATCH

    def index(self, num_heads: int, rows: Tensor, positions: Tensor) -> Tensor:
        """Return the places (M * num_heads,) of the given positions (M,) of rows (M,) in the flattened store."""
        pages = self.table[rows, positions // PAGE].long()  # (M,)
        heads = torch.arange(num_heads, device=self.device)
        inside = (positions % PAGE)[:, None]  # (M, 1)
        return ((pages[:, None] * num_heads + heads) * PAGE + inside).flatten()

    def write(self, layer: int, key: Tensor, value: Tensor, index: Tensor) -> None:
        """Store keys and values (M, H_kv, K) at ``index``."""
        for store, new in zip(self.stores(layer, key, value), (key, value), strict=True):
            flat = new.to(self.dtype).reshape(-1, new.shape[-1])
            store.view(-1, store.shape[-1]).index_copy_(0, index, flat)

    def stores(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's keys and values, allocated for such as the given ones (..., H_kv, K)."""
        if layer not in self.keys:
            self.keys[layer] = self._empty(key.shape[-2], key.shape[-1])
            self.values[layer] = self._empty(value.shape[-2], value.shape[-1])
        return self.keys[layer], self.values[layer]

    def erase(self, pages: Sequence[int]) -> None:
        """Set pages to zeros: what is not a number would get past the mask of their next holder."""
        which = torch.tensor(pages, device=self.device)
        for store in self._stores():
            store[which] = 0

    def copy(self, source: Sequence[int], target: Sequence[int], used: Sequence[int]) -> None:
        """Copy the first ``used`` positions of each page of ``source`` onto one of ``target``, and erase the others."""
        from_pages, to_pages, filled = (
            torch.tensor(part, device=self.device) for part in (source, target, used)
        )
        unused = torch.arange(PAGE, device=self.device) >= filled[:, None]  # (M, PAGE)
        for store in self._stores():
            store[to_pages] = store[from_pages].masked_fill(unused[:, None, :, None], 0.0)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in all layers that have written; 0 before."""
        return sum(part.shape[1] for part in self._bytes())

    def write_bytes(self, pages: Tensor, content: Tensor) -> None:
        """Fill pages (M,) with bytes (M, page_bytes), which are no keys and values until the pages are erased."""
        parts = self._bytes()
        for part, own in zip(parts, content.split([p.shape[1] for p in parts], dim=1), strict=True):
            part.index_copy_(0, pages, own)

    def read_bytes(self, pages: Tensor) -> Tensor:
        """Return the bytes (M, page_bytes) of pages (M,)."""
        return torch.cat([part.index_select(0, pages) for part in self._bytes()], dim=1)

    def clear(self) -> None:
        """Free the memory of keys and values."""
        self.keys.clear()
        self.values.clear()
        self.table.fill_(SCRATCH)

    def _stores(self) -> list[Tensor]:
        return [*self.keys.values(), *self.values.values()]

    def _bytes(self) -> list[Tensor]:
        """Return (num_pages, bytes) of each store: views."""
        return [store.flatten(1).view(torch.uint8) for store in self._stores()]

    def _empty(self, num_heads: int, head_dim: int) -> Tensor:
        # Zeros, not garbage: masked positions enter products with probability 0, and 0 * nan is nan.
        shape = (self.num_pages, num_heads, PAGE, head_dim)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)
