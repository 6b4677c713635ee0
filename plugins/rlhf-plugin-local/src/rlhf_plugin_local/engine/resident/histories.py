"""Pages of sequences that have ended, kept as long as nobody needs the memory.

The next turn of an agent begins with what the turn before was, to the token. Its full pages then hold the keys and
values already, so only the new tokens are computed. Keys are those of the weights that computed them; when weights
change, all histories go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from rlhf_core.media import MediaSpan

from .pages import PAGE, PagePool

NO_TOKEN = np.int32(-1).tobytes()
"""Bytes that no token has."""


class Beginning(NamedTuple):
    """The part of a prompt that is in the cache already."""

    length: int = 0
    """Number of its tokens."""
    pages: Sequence[int] = ()
    """Pages of its keys and values. The last one may be filled in part."""
    state: Sequence[int] = ()
    """Pages that have the state behind it; empty: the model carries none."""


class Ended(NamedTuple):
    """A sequence that has ended, as a history to go on from."""

    token_ids: Sequence[int]
    """Tokens that the model has read."""
    pages: Sequence[int]
    """Pages of their keys and values."""
    row: int
    """Row of the batch that has the state behind the tokens."""
    media: Sequence[MediaSpan] = ()
    """Images, with the places of their tokens."""


KeptT = TypeVar("KeptT")


class Histories(ABC, Generic[KeptT]):
    """Store of what sequences that have ended leave behind: kept until its pages are needed, or while it is spared."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._kept: OrderedDict[bytes, KeptT] = OrderedDict()
        """By digest, the first to be given up first. Its pages are held once for being here."""
        self._spared: set[bytes] = set()
        """All that has been found since ``spare_none``. Nothing else has been used since, so it is at the end."""

    def __len__(self) -> int:
        return len(self._kept)

    @abstractmethod
    def find(self, token_ids: Sequence[int], media: Sequence[MediaSpan] = ()) -> Beginning:
        """Return the longest known beginning of a prompt, and spare it; at least one token is left to compute."""

    @abstractmethod
    def _given_up(self, kept: KeptT) -> list[int]:
        """Return the pages of what is kept no longer."""

    def _freed(self, pages: list[int]) -> None:
        """Hear of pages that nobody holds any more."""

    def make_room(self, pages: int) -> bool:
        """Give up histories that are not spared until so many pages are free; False if they never are."""
        freed: list[int] = []
        while self._pool.num_free < pages and self._kept:
            if next(iter(self._kept)) in self._spared:
                break
            _, kept = self._kept.popitem(last=False)
            freed += self._pool.release(self._given_up(kept))
        self._freed(freed)
        return self._pool.num_free >= pages

    def spare_none(self) -> None:
        """Let all histories give way from now on."""
        self._spared.clear()

    def clear(self) -> None:
        """Give up all of them."""
        self.spare_none()
        self.make_room(self._pool.num_pages)


class CachedHistories(Histories[int]):
    """Full pages by the tokens from the beginning of a sequence to their end.

    A page is found by a digest of these tokens and of the images among them, 128 bits of BLAKE2b, so that two histories
    have one digest with a probability of 2**-64 only once there are 2**32 of them. The least recently used page is the
    first, and of one history the last page: without a page those behind it are of no use.
    """

    def find(self, token_ids: Sequence[int], media: Sequence[MediaSpan] = ()) -> Beginning:
        found: dict[bytes, int] = {}
        for digest in digests(token_ids, media, _page_ends(len(token_ids) - 1)):
            if (page := self._kept.get(digest)) is None:
                break
            found[digest] = page
        self._used(found)
        self._spared.update(found)
        return Beginning(len(found) * PAGE, [*found.values()])

    def keep(self, ended: Iterable[Ended]) -> None:
        """Hold the full pages of sequences."""
        for one in ended:
            full = digests(one.token_ids, one.media, _page_ends(len(one.token_ids)))
            pages = dict(zip(full, one.pages, strict=False))
            for digest, page in pages.items():
                if digest not in self._kept:
                    self._pool.hold([page])
                    self._kept[digest] = page
            self._used(pages)

    def _given_up(self, kept: int) -> list[int]:
        return [kept]

    def _used(self, pages: Iterable[bytes]) -> None:
        """Note that the pages of a history, in its order, have been used."""
        for digest in reversed([*pages]):
            self._kept.move_to_end(digest)


def _page_ends(num_tokens: int) -> range:
    """Return where full pages end."""
    return range(PAGE, num_tokens + 1, PAGE)


def digests(
    token_ids: Sequence[int], media: Sequence[MediaSpan], ends: Iterable[int]
) -> Iterator[bytes]:
    """Yield the digest of the tokens up to each of ``ends``, which rise, and of the images that begin there.

    Tokens do not tell images apart. An image counts as a whole where its tokens begin, since each of them depends on
    all of its pixels; in some families they see each other too.

    Args:
        media: in the order of their tokens.
    """
    running = blake2b(digest_size=16)
    tokens = np.asarray(token_ids, dtype=np.int32)
    start = shown = 0
    for end in ends:
        while shown < len(media) and media[shown].start < end:
            span = media[shown]
            running.update(tokens[start : span.start].tobytes())
            running.update(NO_TOKEN + span.image.identity.encode() + NO_TOKEN)
            start, shown = span.start, shown + 1
        running.update(tokens[start:end].tobytes())
        yield running.digest()
        start = end
