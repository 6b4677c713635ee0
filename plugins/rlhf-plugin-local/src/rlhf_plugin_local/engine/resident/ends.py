"""Whole sequences that have ended, with the states behind them: histories of a model that carries a state.

Keys and values are there for every page of a history, a state only for its end. So a prompt goes on from a history that
it begins with entirely, to the token, and the page in which that ends is copied, since each continuation goes on there
with tokens of its own. As in ``histories``, all is given up when weights change.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from rlhf_core.media import MediaSpan

from .histories import Beginning, Ended, digests, may_give_way
from .paged_cache import PagedCache
from .pages import PagePool
from .state_pages import StatePages


class KeptEnds:
    """Pages of keys and values and pages of the state, by the digest of all tokens and images of a history."""

    def __init__(self, pool: PagePool, cache: PagedCache, states: StatePages) -> None:
        self._pool = pool
        self._cache = cache
        self._states = states
        self._ends: OrderedDict[bytes, Beginning] = OrderedDict()
        """By digest, the first to be given up first. The pages of each are held once for being here."""
        self._spared: set[bytes] = set()
        """All that has been found since ``spare_none``. Nothing else has been used since, so it is at the end."""
        self._lengths: Counter[int] = Counter()
        """Number of histories of each length."""

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def num_pages(self) -> int:
        """Number of pages that are held, each counted once."""
        return len({page for end in self._ends.values() for page in (*end.pages, *end.state)})

    def find(self, token_ids: Sequence[int], media: Sequence[MediaSpan] = ()) -> Beginning:
        """Return the longest known beginning of a prompt, and spare it; at least one token is left to compute."""
        digest = self._longest(digests(token_ids, media, self._shorter_than(len(token_ids))))
        if digest is None:
            return Beginning()
        self._ends.move_to_end(digest)
        self._spared.add(digest)
        return self._ends[digest]

    def keep(self, ended: Iterable[Ended]) -> None:
        """Hold the pages of sequences, and copy the states of their rows to pages.

        Older histories give way. A sequence for whose state there is no room is not kept.
        """
        kept: list[tuple[bytes, int]] = []
        for one in ended:
            length = len(one.token_ids)
            *before, own = digests(one.token_ids, one.media, [*self._shorter_than(length), length])
            if own in self._ends:
                self._ends.move_to_end(own)
                continue
            needed = self._states.per_state
            if not needed or not self.make_room(needed):
                continue
            self._pool.hold(list(one.pages))
            self._ends[own] = Beginning(length, tuple(one.pages), tuple(self._pool.take(needed)))
            self._lengths[length] += 1
            kept.append((own, one.row))
            if (older := self._longest(before)) is not None:
                # It has been gone on from, so of all it is the least likely to be needed.
                self._ends.move_to_end(older, last=False)
        # One of many may have given way to another.
        saved = [(row, self._ends[digest].state) for digest, row in kept if digest in self._ends]
        if saved:
            self._states.save([row for row, _ in saved], [pages for _, pages in saved])

    def make_room(self, pages: int) -> bool:
        """Give up histories that are not spared until so many pages are free; False if they never are."""
        freed: list[int] = []
        while self._pool.num_free < pages and may_give_way(self._ends, self._spared):
            _, end = self._ends.popitem(last=False)
            self._lengths -= Counter([end.length])
            freed += self._pool.release([*end.pages, *end.state])
        if freed:
            # The bytes of a state may be no numbers where keys and values are read.
            self._cache.erase(freed)
        return self._pool.num_free >= pages

    def spare_none(self) -> None:
        """Let all histories give way from now on."""
        self._spared.clear()

    def clear(self) -> None:
        """Give up all of them."""
        self.spare_none()
        self.make_room(self._pool.num_pages)

    def _shorter_than(self, length: int) -> list[int]:
        """Return the lengths of histories below a length, rising."""
        return sorted(own for own in self._lengths if own < length)

    def _longest(self, found: Iterable[bytes]) -> bytes | None:
        """Return the last of the digests that is known; None: none is."""
        return next((each for each in reversed([*found]) if each in self._ends), None)
