"""Whose page is whose: the host's account of the pages of the cache.

A page holds the keys and values of ``PAGE`` tokens in all layers. Samples of one prompt share its full pages; the page
in which a prompt ends, and all after it, belong to one sequence, since each sequence goes on there with tokens of its
own.
"""

from __future__ import annotations

from rlhf_core import RolloutError

PAGE = 64
"""Tokens of a page: as many keys as a program of the attention kernel multiplies at a time."""
SCRATCH = 0
"""Page that belongs to nobody. Rows without a sequence write there."""


def pages_of(num_tokens: int) -> int:
    """Return the number of pages that hold ``num_tokens`` tokens."""
    return -(-num_tokens // PAGE)


class PagePool:
    """Free pages, and the number of sequences that hold each of the others.

    Args:
        num_pages: pages of the cache, ``SCRATCH`` among them.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, SCRATCH, -1))
        """The next one is the last."""
        self._holders = [0] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Return pages that nobody held; the caller holds them now.

        Raises:
            RolloutError: fewer are free. Whoever admits sequences asks ``num_free`` first, so this is a defect.
        """
        if count > len(self._free):
            raise RolloutError(
                f"{count} pages of the cache were asked for, and {len(self._free)} of {self.num_pages} are free",
                code="engine/pages-missing",
            )
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def hold(self, pages: list[int]) -> None:
        """Note one more holder of each of ``pages``."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free"
            self._holders[page] += 1

    def release(self, pages: list[int]) -> list[int]:
        """Note one holder less of each of ``pages``, and return those that are free now."""
        freed = []
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free already"
            self._holders[page] -= 1
            if not self._holders[page]:
                freed.append(page)
        self._free += freed
        return freed
