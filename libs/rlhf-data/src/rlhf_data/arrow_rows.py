"""Rows of Arrow's tables as they were written: without the nulls with which Arrow fills up the objects of a column.

A table has one type for a column, so each object in it has the keys of all of them: ``{"x": 1}`` beside ``{"y": 2}``
comes back as ``{"x": 1, "y": None}``. Such a null cannot be told from one that somebody wrote, and goes: it would stand
in what a chat template writes, and be learned. What stays: nulls among the entries of a list, null columns, and all
within a column of type ``Json``, whose text knows what was written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .source import Row

_Strip = Callable[[Any], Any]


class WrittenRows:
    """Reader of rows as they were written.

    Args:
        features: types of the columns, as ``datasets`` has them; None: unknown, so every object may be filled up.
    """

    def __init__(self, features: Mapping[str, Any] | None) -> None:
        self._strips: dict[str, _Strip] | None = None
        if features is not None:
            found = {name: _strip_of(feature) for name, feature in features.items()}
            self._strips = {name: strip for name, strip in found.items() if strip is not None}

    def row(self, row: Row) -> Row:
        """Return a row without the nulls of padding; the same object, if none of its columns can have any."""
        if self._strips is None:
            return {name: _stripped(value) for name, value in row.items()}
        if not self._strips:
            return row
        return {
            name: self._strips[name](value) if name in self._strips else value
            for name, value in row.items()
        }


def rows_as_written(rows: Any) -> Any:
    """Return rows without the nulls of padding where they are a data set of ``datasets``; other rows as they are.

    A data set by index stays one that has a length and is read by index; a stream stays an iterable.
    """
    # Who has a data set has imported the library; nobody else has to.
    datasets = sys.modules.get("datasets")
    if datasets is None:
        return rows
    if isinstance(rows, datasets.Dataset):
        return _Table(rows)
    if isinstance(rows, datasets.IterableDataset) and rows.features is not None:
        reader = WrittenRows(rows.features)
        return map(reader.row, rows)
    return rows


class _Table:
    """Rows of a ``datasets.Dataset`` by index, as they were written."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._reader = WrittenRows(dataset.features)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Row:
        return self._reader.row(self._dataset[index])

    def __iter__(self) -> Iterator[Row]:
        return map(self._reader.row, self._dataset)


def _strip_of(feature: Any) -> _Strip | None:
    """Return what takes padding out of values of a type; None: the type has no object that Arrow fills up."""
    if isinstance(feature, Mapping):
        fields = {name: _strip_of(one) for name, one in feature.items()}
        return lambda value: _stripped_object(value, fields)
    # An older way to write a list's type is a list of one type.
    entry = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    strip = None if entry is None else _strip_of(entry)
    if strip is None:
        return None
    return lambda value: [strip(one) for one in value] if isinstance(value, list) else value


def _stripped_object(value: Any, fields: Mapping[str, _Strip | None]) -> Any:
    if not isinstance(value, dict):
        return value
    stripped = {}
    for name, one in value.items():
        if one is not None:
            strip = fields.get(name)
            stripped[name] = one if strip is None else strip(one)
    return stripped


def _stripped(value: Any) -> Any:
    """Return a value of unknown type without the nulls of its objects."""
    if isinstance(value, dict):
        return {name: _stripped(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_stripped(one) for one in value]
    return value
