"""States of rows, in pages of the cache: bytes where keys and values would be.

A state that waits for its next turn so takes memory from the keys and values, out of one pool and under one limit. It
is copied there and back, and nothing computes with it meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import round_up
from ..states import RecurrentStates
from .paged_cache import PagedCache

ALIGNMENT = 16
"""Bytes whose multiples the parts of a state begin at, so that each can be read in its own type."""
MOST_COPIED = 64 * 2**20
"""Bytes of states that are copied at once, beside a cache that may fill the memory."""


class StatePages:
    """Copies states between rows and pages."""

    def __init__(self, states: RecurrentStates, cache: PagedCache) -> None:
        self._states = states
        self._cache = cache

    @property
    def per_state(self) -> int:
        """Pages of one state; 0 where there is none, or no cache to keep it in."""
        page = self._cache.page_bytes
        return -(-sum(self._sizes()) // page) if page else 0

    def save(self, rows: Sequence[int], pages: Sequence[Sequence[int]]) -> None:
        """Copy the states of rows, each to ``per_state`` pages of its own."""
        for own_rows, own_pages in self._in_parts(rows, pages):
            found = [store.index_select(0, own_rows) for store in self._states.stores()]
            state = torch.cat([_padded(part.flatten(1).view(torch.uint8)) for part in found], dim=1)
            missing = self.per_state * self._cache.page_bytes - state.shape[1]
            content = F.pad(state, (0, missing)).view(len(own_pages), -1)
            self._cache.write_bytes(own_pages, content)

    def load(self, rows: Sequence[int], pages: Sequence[Sequence[int]]) -> None:
        """Copy states from their pages to rows."""
        for own_rows, own_pages in self._in_parts(rows, pages):
            state = self._cache.read_bytes(own_pages).view(len(own_rows), -1)
            start = 0
            for store, size in zip(self._states.stores(), self._sizes(), strict=True):
                own = state[:, start : start + _bytes(store)].contiguous().view(store.dtype)
                store.index_copy_(0, own_rows, own.view(-1, *store.shape[1:]))
                start += size

    def _sizes(self) -> list[int]:
        """Return the bytes that each store takes of a state."""
        return [round_up(_bytes(store), ALIGNMENT) for store in self._states.stores()]

    def _in_parts(
        self, rows: Sequence[int], pages: Sequence[Sequence[int]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield some rows and all of their pages at a time, on the device."""
        at_once = max(1, MOST_COPIED // max(1, self.per_state * self._cache.page_bytes))
        for start in range(0, len(rows), at_once):
            some = slice(start, start + at_once)
            flat = [page for own in pages[some] for page in own]
            yield (
                torch.tensor(rows[some], device=self._cache.device),
                torch.tensor(flat, device=self._cache.device),
            )


def _bytes(store: Tensor) -> int:
    """Return the bytes of a row."""
    return store[0].numel() * store.element_size()


def _padded(content: Tensor) -> Tensor:
    """Return bytes (M, n) with zeros up to a multiple of ``ALIGNMENT``."""
    return F.pad(content, (0, -content.shape[1] % ALIGNMENT))
