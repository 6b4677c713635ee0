"""Order of an epoch and shares of a mix as functions of seed and epoch.

No function depends on earlier draws, so a resumed run continues the order of the uninterrupted run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_core.rng import generator_of


def epoch_counts(sizes: Sequence[int], probabilities: Sequence[float]) -> list[int]:
    """Return the number of rows that each set gives to one epoch.

    Without probabilities a set gives all its rows. With probabilities an epoch is the longest mix with these shares
    that repeats no row: ``n_i = p_i * min_j(size_j / p_j)`` over sets with ``p_j > 0``, rounded, and at least 1. So the
    set that is scarcest for its share is used up, and the other sets go on in the next epoch.
    """
    if not probabilities:
        return list(sizes)
    total = min(size / p for size, p in zip(sizes, probabilities, strict=True) if p > 0)
    return [
        min(size, max(1, round(p * total))) if p > 0 else 0
        for size, p in zip(sizes, probabilities, strict=True)
    ]


def epoch_order(
    sizes: Sequence[int], probabilities: Sequence[float], *, epoch: int, seed: int, shuffle: bool
) -> NDArray[np.int64]:
    """Return positions in the concatenation of the sets, in the order of this epoch; no position occurs twice.

    In a mix each set has a fixed order: a shuffle of its own, or the order of its rows. An epoch goes on in this order
    from the end of the epoch before, and from the last row to the first. So over epochs all rows of a set come equally
    often. Without ``shuffle`` the sets are interleaved evenly.
    """
    if probabilities:
        counts = epoch_counts(sizes, probabilities)
        order = interleaved(sizes, counts, epoch=epoch, seed=seed, shuffle=shuffle)
    else:
        order = np.arange(sum(sizes), dtype=np.int64)
    if shuffle:
        order = order[generator_of(seed, "data", epoch).permutation(len(order))]
    return order


def interleaved(
    sizes: Sequence[int], counts: Sequence[int], *, epoch: int, seed: int, shuffle: bool
) -> NDArray[np.int64]:
    """Return positions in the concatenation of the sets, ``counts`` of them from each, interleaved evenly.

    Any stretch of an epoch has the sets in these proportions. ``shuffle`` gives each set a fixed order of its own, in
    which an epoch goes on from the end of the epoch before.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    chosen = [
        starts[index] + _window(size, count, index=index, epoch=epoch, seed=seed, shuffle=shuffle)
        for index, (size, count) in enumerate(zip(sizes, counts, strict=True))
    ]
    due = np.concatenate([(np.arange(count) + 0.5) / max(count, 1) for count in counts])
    order: NDArray[np.int64] = np.concatenate(chosen)[np.argsort(due, kind="stable")]
    return order.astype(np.int64)


def spread(index: int) -> float:
    """Return the fraction of an index times the golden ratio, in [0, 1): any run of indices is spread evenly."""
    return index * 0x9E3779B97F4A7C15 % 2**64 / 2**64


def _window(
    size: int, count: int, *, index: int, epoch: int, seed: int, shuffle: bool
) -> NDArray[np.int64]:
    walk = (np.arange(count) + epoch * count) % max(size, 1)
    if not shuffle:
        return walk
    return generator_of(seed, "data of set", index).permutation(size)[walk]
