"""One digest for the weights of an engine whose workers hold parts of them: shards, copies of shards, stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from rlhf_core import RolloutError
from rlhf_core.weights import digest_of_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWeight:
    """What one worker holds of one weight."""

    name: str
    dtype: str
    shape: Sequence[int]
    """Of the whole weight."""
    region: str
    """Which elements; two workers with the same region hold the same ones."""
    elements: int
    """In the region."""
    all_elements: int
    """Of the whole weight."""
    total: int
    """Their share of ``rlhf_core.weights.bits_digest``."""
    words: int
    """Words of 4 bytes in the region, as far as they are in it whole."""
    all_words: int
    """Of the whole weight."""


def served_digest(workers: Sequence[Sequence[HeldWeight]]) -> str | None:
    """Return ``weights_digest`` of the weights that the workers hold together; None where regions overlap in part, or
    begin within a word, so that sums do not add up.

    Raises:
        RolloutError: two workers hold different values of the same elements, or no worker holds some.
    """
    by_name: dict[str, dict[str, HeldWeight]] = {}
    for held in chain.from_iterable(workers):
        regions = by_name.setdefault(held.name, {})
        other = regions.setdefault(held.region, held)
        if other != held:
            raise RolloutError(
                f"vLLM's workers serve different weights: the sums of {held.name} are {other.total} and {held.total}"
            )
    sums = []
    for name, regions in by_name.items():
        first = next(iter(regions.values()))
        elements = sum(held.elements for held in regions.values())
        if elements < first.all_elements:
            raise RolloutError(
                f"vLLM's workers hold {elements} of the {first.all_elements} elements of {name}; the others are served "
                "as they were before the last update"
            )
        if (
            elements > first.all_elements
            or sum(h.words for h in regions.values()) < first.all_words
        ):
            return None
        total = sum(held.total for held in regions.values())
        sums.append((name, first.dtype, tuple(first.shape), total))
    return digest_of_sums(sums)
