"""Strands: the tokens of one path of an episode, from where it leaves an earlier path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from rlhf_core.media.spans import MediaSpan

from .node import RequestNode


class Strand:
    """One path of a graph. Its first ``start`` tokens are its parent's; only what follows is held, in one array.

    Args:
        parent: the strand that it leaves; None: it begins with a token of its own.
        start: number of tokens that it shares with its parent.
    """

    __slots__ = ("_end", "_own", "nodes", "parent", "start")

    def __init__(self, parent: Strand | None, start: int) -> None:
        self.parent = parent
        self.start = start
        self.nodes: list[RequestNode] = []
        """Requests whose answers are among the strand's own tokens, in order."""
        self._own = np.zeros(0, dtype=np.int32)
        self._end = start

    def __len__(self) -> int:
        """Return the number of tokens of the whole path."""
        return self._end

    def append(self, token_ids: NDArray[np.int32]) -> None:
        """Add tokens at the end. The array grows by half of its size, so that many turns cost what they add."""
        used, needed = self._end - self.start, self._end - self.start + len(token_ids)
        if needed > len(self._own):
            grown = np.zeros(max(needed, len(self._own) * 3 // 2), dtype=np.int32)
            grown[:used] = self._own[:used]
            self._own = grown
        self._own[used:needed] = token_ids
        self._end += len(token_ids)

    def num_shared(self, token_ids: NDArray[np.int32]) -> int:
        """Return how many of the strand's own tokens are those at ``token_ids[start:]``, from the first on."""
        own, other = self._own[: self._end - self.start], token_ids[self.start :]
        count = min(len(own), len(other))
        if not count or own[0] != other[0]:
            return 0
        differs = own[:count] != other[:count]
        first = int(differs.argmax())
        return first if differs[first] else count

    def path(self, end: int) -> NDArray[np.int32]:
        """Return a copy of the path's first ``end`` tokens."""
        path = np.empty(end, dtype=np.int32)
        strand: Strand | None = self
        while strand is not None:
            if end > strand.start:
                path[strand.start : end] = strand._own[: end - strand.start]
                end = strand.start
            strand = strand.parent
        return path

    def last_read(self, end: int) -> RequestNode | None:
        """Return the last request of whose answer a token is among the path's first ``end``; None: there is none."""
        strand: Strand | None = self
        while strand is not None:
            for node in reversed(strand.nodes):
                is_read = node.end <= end if node.is_discarded else node.start < end
                if is_read:
                    return node
            end = min(end, strand.start)
            strand = strand.parent
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPath:
    """The longest part of an input that is on a strand already."""

    strand: Strand
    length: int
    """Number of tokens that are shared, at least 1."""

    @property
    def is_whole(self) -> bool:
        """True when the strand ends where the shared part does, so that the input goes on with it."""
        return self.length == len(self.strand)


def longest_shared(
    strands: Sequence[Strand], token_ids: NDArray[np.int32], media: Sequence[MediaSpan] = ()
) -> SharedPath | None:
    """Return the strand that shares the longest prefix with an input; None: no strand shares a token.

    Of several the one that ends there is taken, then one whose last answer was not discarded, then the latest.

    Args:
        strands: each after its parent.
        media: images of the input. Tokens of another image are other tokens.
    """
    shared: dict[int, int] = {}
    best: tuple[int, bool, bool] = (0, False, False)
    found: Strand | None = None
    for strand in strands:
        inherited = shared[id(strand.parent)] if strand.parent is not None else 0
        if inherited < strand.start:
            shared[id(strand)] = inherited
            continue
        same_tokens = strand.start + strand.num_shared(token_ids)
        length = shared[id(strand)] = _up_to_other_image(same_tokens, strand.nodes[-1].media, media)
        rank = (length, length == len(strand), not strand.nodes[-1].is_discarded)
        if length > strand.start and rank >= best:
            best, found = rank, strand
    return None if found is None else SharedPath(strand=found, length=best[0])


def _up_to_other_image(length: int, known: Sequence[MediaSpan], media: Sequence[MediaSpan]) -> int:
    """Return how many of the first ``length`` tokens stand before the first image that differs."""
    parts = ([span for span in spans if span.start < length] for spans in (known, media))
    for one, other in zip_longest(*parts):
        if one != other:
            return min(span.start for span in (one, other) if span is not None)
    return length
