"""Rows of different lengths, one after the other in one flat array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..lazy import NDArray, np

LONG_ROW = 64
"""Mean number of elements per row above which rows are copied one by one."""


def offsets_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return (B + 1,) the position at which each row begins, and at the end the position after the last row."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def ragged_index(offsets: NDArray[np.int64], rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the positions of the elements of ``rows``, in order, without a loop over rows."""
    lengths = np.diff(offsets)[rows]
    starts = np.repeat(offsets[:-1][rows] - offsets_of(lengths)[:-1], lengths)
    index: NDArray[np.int64] = np.arange(int(lengths.sum()), dtype=np.int64) + starts
    return index


def taker(
    offsets: NDArray[np.int64], rows: NDArray[np.integer]
) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return a function that takes the elements of ``rows``, in order, from a column."""
    starts, ends = offsets[:-1][rows], offsets[1:][rows]
    if int((ends - starts).sum()) <= LONG_ROW * len(rows):
        index = ragged_index(offsets, rows)
        return lambda column: column[index]
    # An index would be larger than the elements themselves: it has 8 bytes for each.
    spans = list(map(slice, starts.tolist(), ends.tolist()))
    return lambda column: np.concatenate([column[span] for span in spans])


def packed(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    """Return all parts as one array, with a single copy since batches are large."""
    return np.concatenate(parts).astype(dtype, copy=False)
