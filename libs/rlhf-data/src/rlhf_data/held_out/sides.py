"""Side of a row, training or evaluation, as a function of what it asks alone.

The same row is on the same side in every file, order, run and command, whatever rows are beside it and whatever the
seed is; so are rows that ask the same and have other answers.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.errors import DataError

from ..made.rows import KEY
from ..source import Row, Source, Unreadable

log = logging.getLogger(__name__)

Hashes = NDArray[np.uint64]


def row_hash(row: Row, asked: Sequence[str], all_columns: Sequence[str] = ()) -> int:
    """Return a hash, from 0 to 2^64 - 1, of the values of the columns that ask.

    Names of columns, and fields that are null, do not count: a table has them where a line of JSON has none.

    Args:
        asked: columns of the prompt.
        all_columns: columns that are read; they are hashed of a row that has nothing in ``asked``, such as two
            conversations without a column for the prompt that they share.
    """
    values = [_without_nulls(row.get(name)) for name in asked]
    if all(value is None for value in values):
        values = [_without_nulls(row.get(name)) for name in all_columns]
    text = json.dumps(values, sort_keys=True, default=repr)
    return number_of(text.encode("utf-8", "surrogatepass"))


def whole_row_hash(row: Row) -> int:
    """Return a hash, from 0 to 2^64 - 1, of all columns of a row but its key, for environments, which read them all."""
    return row_hash({"row": {name: value for name, value in row.items() if name != KEY}}, ["row"])


def number_of(content: bytes) -> int:
    """Return a hash of bytes from 0 to 2^64 - 1."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def hashes_of(
    source: Source, count: int, asked: Sequence[str] | None, all_columns: Sequence[str] = ()
) -> Hashes:
    """Return the hash (count,) of each of the first rows of a source; rows that cannot be read have the largest.

    Args:
        asked: columns of the prompt; None: the whole row asks.
    """
    columns = None if asked is None else [*asked, *all_columns]

    def hash_of(row: Row | Unreadable) -> int:
        if isinstance(row, Unreadable):
            return 2**64 - 1
        return whole_row_hash(row) if asked is None else row_hash(row, asked, all_columns)

    found = map(hash_of, islice(source.scan(columns), count))
    return np.fromiter(found, dtype=np.uint64, count=count)


def held_out(hashes: Hashes, fraction: float) -> NDArray[np.bool_]:
    """Return a mask (rows,), True at the rows to hold out: those whose hash is among the ``fraction`` smallest ones.

    Of a set with different rows at least one is held out, that with the smallest hash, and not all.
    """
    if fraction <= 0.0 or not len(hashes) or (hashes == hashes[0]).all():
        return np.zeros(len(hashes), dtype=bool)
    mask: NDArray[np.bool_] = hashes < np.uint64(int(fraction * 2**64))
    if not mask.any():
        mask = hashes == hashes.min()
    if mask.all():
        mask = hashes != hashes.max()
    return mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two sides of the training rows."""

    fraction: float = 0.0
    """Share of the rows that are evaluated; 0: all rows are trained on."""
    is_evaluated: bool = False
    """The rows to evaluate on, not those to train on."""
    max_rows: int | None = None
    """Number of rows of each set that are used of the side, the first ones; None: all."""

    @property
    def lacks(self) -> str:
        """Words for an error where no row is on this side."""
        if not self.is_evaluated:
            return "expected at least one row, got none"
        return (
            "expected sets of at least 2 rows that ask different things, to hold some out; got none. Give held-out "
            "rows with --eval.data."
        )

    def wanted(self, hashes: Callable[[], Hashes], count: int) -> NDArray[np.bool_]:
        """Return a mask (count,), True at the rows of a set that are on this side.

        Args:
            hashes: function that returns the hash of each row; it is called where a share is held out.
        """
        if not self.fraction:
            return np.full(count, not self.is_evaluated)
        mask: NDArray[np.bool_] = held_out(hashes(), self.fraction) == self.is_evaluated
        if self.max_rows is not None:
            mask &= np.cumsum(mask) <= self.max_rows
        return mask


ALL = Side()
"""All rows of sets without held-out ones."""


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(one) for one in value]
    return value


def refuse_trained_rows(trained: Hashes, sets: Mapping[str, Hashes], option: str) -> None:
    """Say of each held-out set how many of its rows the run trains on.

    Args:
        trained: hash of what the model reads of each training row.
        sets: the same of the rows of each held-out set, by name.
        option: option that names the sets, for messages.

    Raises:
        DataError: the run trains on all held-out rows.
    """
    both = {name: int(np.isin(hashes, trained).sum()) for name, hashes in sets.items()}
    if all(both[name] == len(hashes) for name, hashes in sets.items()):
        counted = ", ".join(f"{count} of {count} of {name!r}" for name, count in both.items())
        raise DataError(
            f"{option}: expected rows that the run does not train on; all are training rows too, by what the model "
            f"reads ({counted}).\n  Name other rows with --eval.data, or another split of a folder or a set of the hub "
            "with --eval.split; or leave --eval.data out and hold some of the training rows out with --eval.fraction "
            "0.1.",
            code="data/held-out-rows-train",
        )
    for name, count in both.items():
        if count:
            log.warning(
                "%s: the run also trains on %d of the %d rows of the held-out set %r, by what the model reads",
                option,
                count,
                len(sets[name]),
                name,
            )
