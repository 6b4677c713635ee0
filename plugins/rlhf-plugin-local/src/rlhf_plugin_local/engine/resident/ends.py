"""Whole sequences that have ended, with the states behind them: histories of a model that carries a state.

Keys and values are there for every page of a history, a state only for its end. So a prompt goes on from a history that
it begins with entirely, to the token, and the page in which that ends is copied, since each continuation goes on there
with tokens of its own. As in ``histories``, all is given up when weights change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rlhf_core.media import MediaSpan

from .histories import Beginning, Ended, Histories, digests
from .paged_cache import PagedCache
from .pages import PagePool
from .state_pages import StatePages


class KeptEnds(Histories[Beginning]):
    """Pages of keys and values and pages of the state, by the digest of all tokens and images of a history."""

    def __init__(self, pool: PagePool, cache: PagedCache, states: StatePages) -> None:
        super().__init__(pool)
        self._cache = cache
        self._states = states
        self._lengths: Counter[int] = Counter()
        """Number of histories of each length."""

    @property
    def num_pages(self) -> int:
        """Number of pages that are held, each counted once."""
        return len({page for end in self._kept.values() for page in (*end.pages, *end.state)})

    def find(self, token_ids: Sequence[int], media: Sequence[MediaSpan] = ()) -> Beginning:
        digest = self._longest(digests(token_ids, media, self._shorter_than(len(token_ids))))
        if digest is None:
            return Beginning()
        self._kept.move_to_end(digest)
        self._spared.add(digest)
        return self._kept[digest]

    def keep(self, ended: Iterable[Ended]) -> None:
        """Hold the pages of sequences, and copy the states of their rows to pages.

        Older histories give way. A sequence for whose state there is no room is not kept.
        """
        kept: list[tuple[bytes, int]] = []
        for one in ended:
            length = len(one.token_ids)
            *before, own = digests(one.token_ids, one.media, [*self._shorter_than(length), length])
            if own in self._kept:
                self._kept.move_to_end(own)
                continue
            needed = self._states.per_state
            if not needed or not self.make_room(needed):
                continue
            self._pool.hold(list(one.pages))
            self._kept[own] = Beginning(length, tuple(one.pages), tuple(self._pool.take(needed)))
            self._lengths[length] += 1
            kept.append((own, one.row))
            if (older := self._longest(before)) is not None:
                # It has been gone on from, so of all it is the least likely to be needed.
                self._kept.move_to_end(older, last=False)
        # One of many may have given way to another.
        saved = [(row, self._kept[digest].state) for digest, row in kept if digest in self._kept]
        if saved:
            self._states.save([row for row, _ in saved], [pages for _, pages in saved])

    def _given_up(self, kept: Beginning) -> list[int]:
        self._lengths -= Counter([kept.length])
        return [*kept.pages, *kept.state]

    def _freed(self, pages: list[int]) -> None:
        if pages:
            # The bytes of a state may be no numbers where keys and values are read.
            self._cache.erase(pages)

    def _shorter_than(self, length: int) -> list[int]:
        """Return the lengths of histories below a length, rising."""
        return sorted(own for own in self._lengths if own < length)

    def _longest(self, found: Iterable[bytes]) -> bytes | None:
        """Return the last of the digests that is known; None: none is."""
        return next((each for each in reversed([*found]) if each in self._kept), None)
