"""Sequences that are admitted together: which tokens are computed for them, and where what they need goes.

Axes: ``P`` distinct prompts, ``N`` tokens of the packed row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..prefill import ROW_MULTIPLE, CacheWriter, PackedPrompts
from ..sequence import Prompt
from ..sequence import Sequence as Generated
from .histories import Beginning, Ended
from .paged_cache import PagedCache
from .pages import PAGE, pages_of
from .resumed import Resumed


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Sequences in rows of the batch that follow each other."""

    prompts: Sequence[Prompt]
    """(P,) to compute."""
    owner: Sequence[int]
    """Number of each sequence's prompt."""
    known: Sequence[Beginning]
    """(P,) beginnings that are in the cache already."""
    pages: Sequence[Sequence[int]]
    """Pages of each sequence."""
    num_shared: Sequence[int]
    """Number of each sequence's first pages that stand in the cache already, or that another sequence of the prompt
    fills."""
    first_row: int
    """Row of the first sequence."""

    @property
    def known_lengths(self) -> list[int]:
        """(P,) leading tokens that are in the cache already."""
        return [beginning.length for beginning in self.known]

    @property
    def seated(self) -> dict[int, int]:
        """Row of the first sequence of each prompt."""
        numbered = reversed([*enumerate(self.owner)])
        return {prompt: self.first_row + number for number, prompt in numbered}

    @property
    def resumed_states(self) -> dict[int, Sequence[int]]:
        """Pages of the states that prompts go on from, by prompt."""
        return {prompt: each.state for prompt, each in enumerate(self.known) if each.state}

    def ends(self, packed: PackedPrompts) -> list[int]:
        """Return where in the row each sequence's prompt ends; a few more fill up a multiple."""
        new = [
            len(prompt.token_ids) - beginning.length
            for prompt, beginning in zip(self.prompts, self.known, strict=True)
        ]
        last = [packed.starts[prompt] + new[prompt] - 1 for prompt in self.owner]
        return last + last[-1:] * (-len(last) % ROW_MULTIPLE)

    def copies(self) -> list[tuple[int, int, int]]:
        """Return (page, copy, filled positions) where a beginning ends inside of a page: each sequence that fills the
        page goes on in a copy of its own."""
        copies = []
        for prompt, pages, shared in zip(self.owner, self.pages, self.num_shared, strict=True):
            beginning = self.known[prompt]
            full, filled = divmod(beginning.length, PAGE)
            if filled and shared == full:
                copies.append((beginning.pages[full], pages[full], filled))
        return copies

    def stopped_by_text(self, sequences: Sequence[Generated]) -> list[Ended]:
        """Return the prompts that are gone on from with stop strings, as histories.

        The host finds a stop string in a burst when the device has read tokens behind it. The state at the stop is gone
        then, so that a later turn goes on from the one behind the prompt.
        """
        watched = {
            prompt
            for prompt, sequence in zip(self.owner, sequences, strict=True)
            if sequence.watcher is not None
        }
        ended = []
        for prompt, row in self.seated.items():
            tokens, media = self.prompts[prompt]
            if prompt in watched:
                own = self.pages[row - self.first_row]
                ended.append(Ended(tokens, own[: pages_of(len(tokens))], row, media))
        return ended

    def writer(
        self, packed: PackedPrompts, cache: PagedCache, compute_dtype: torch.dtype
    ) -> CacheWriter:
        """Send the tokens of each prompt that its sequences' pages lack to the sequences' rows."""
        source, rows, positions = [], [], []
        for number, (prompt, shared) in enumerate(zip(self.owner, self.num_shared, strict=True)):
            known = self.known[prompt].length
            own = torch.arange(max(known, shared * PAGE), len(self.prompts[prompt].token_ids))
            source.append(packed.starts[prompt] + own - known)
            rows.append(torch.full_like(own, self.first_row + number))
            positions.append(own)
        joined = [torch.cat(part).to(cache.device) for part in (source, rows, positions)]
        return CacheWriter(
            cache, compute_dtype, source=joined[0], rows=joined[1], positions=joined[2]
        )

    def resumed(self, packed: PackedPrompts) -> list[Resumed]:
        """Return the prompts as their attention sees them, in the order of the row."""
        seated = self.seated
        return [
            Resumed(
                length=length,
                pages=self.known[prompt].pages,
                known=self.known[prompt].length,
                num_new=num_new,
                row=seated[prompt],
            )
            for prompt, length, num_new in zip(
                packed.order, packed.padded_lengths, packed.lengths, strict=True
            )
        ]
