"""The digest of an engine's weights, when each worker holds a part: a shard, a copy of a shard, or a pipeline stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from rlhf_core import RolloutError
from rlhf_weights import digest_of_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWeight:
    """The region of one weight that one worker holds."""

    name: str
    """Hugging Face name of the weight."""
    dtype: str
    shape: Sequence[int]
    """Shape of the whole weight."""
    region: str
    """Description of the region's elements; equal for two workers if and only if they hold the same elements."""
    elements: int
    """Number of elements in the region."""
    all_elements: int
    """Number of elements of the whole weight."""
    total: int
    """The region's part of the sum ``rlhf_weights.bits_digest``."""
    words: int
    """Number of words of 4 bytes that are in the region as a whole."""
    all_words: int
    """Number of words of 4 bytes of the whole weight."""


def served_digest(workers: Sequence[Sequence[HeldWeight]]) -> str | None:
    """Return ``weights_digest`` of the weights that the workers hold together.

    The result is None if regions overlap in part, or begin within a word of 4 bytes: their sums then do not add up.

    Raises:
        RolloutError: two workers hold different values of the same elements, or no worker holds some elements.
    """
    by_name: dict[str, dict[str, HeldWeight]] = {}
    for held in chain.from_iterable(workers):
        regions = by_name.setdefault(held.name, {})
        other = regions.setdefault(held.region, held)
        if other != held:
            raise RolloutError(
                f"vLLM's workers serve different weights: the sums of {held.name} are {other.total} and {held.total}",
                code="vllm/workers-differ",
            )
    sums = []
    for name, regions in by_name.items():
        first = next(iter(regions.values()))
        elements = sum(held.elements for held in regions.values())
        if elements < first.all_elements:
            raise RolloutError(
                f"vLLM's workers hold {elements} of the {first.all_elements} elements of {name}; the other elements "
                "kept the values that they had before the last update",
                code="vllm/part-of-an-update",
            )
        if (
            elements > first.all_elements
            or sum(h.words for h in regions.values()) < first.all_words
        ):
            return None
        total = sum(held.total for held in regions.values())
        sums.append((name, first.dtype, tuple(first.shape), total))
    return digest_of_sums(sums)
