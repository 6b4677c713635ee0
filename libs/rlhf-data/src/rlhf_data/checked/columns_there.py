"""Columns that the rows of sets have, for messages about one that they have not."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import contains
from pathlib import Path

from rlhf_config.checks.data_files import is_pattern, split_name
from rlhf_core.batch.task import value_at

from ..source import Row, Source, Unreadable, filled_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Words about a column that no row has."""

    sets: str
    near: str
    """Question for the column that is meant, behind a sentence; empty where none is near."""
    columns: str
    """The columns of the first rows."""


def are_here(entries: Sequence[str]) -> bool:
    """Return whether all sets are files or folders of this machine, so that reading them downloads nothing."""
    paths = [split_name(entry)[1] for entry in entries]
    return all(is_pattern(path) or Path(path).exists() for path in paths)


def has_column(source: Source, column: str, *, entries: bool = False) -> bool:
    """Return whether a row has a column. Rows are read up to the first one that has it.

    Args:
        entries: the entry of an object in a column counts too, as ``value_at`` reads it.
    """
    rows = source.scan(list(dict.fromkeys([column, column.partition(".")[0]])))
    has = has_value if entries else contains
    return any(not isinstance(row, Unreadable) and has(row, column) for row in rows)


def has_value(row: Row, column: str) -> bool:
    """Return whether a row has a column, or an entry of an object in one, as ``value_at`` reads it."""
    try:
        value_at(row, column)
    except KeyError:
        return False
    return True


def missing(column: str, sources: Sequence[Source]) -> Missing:
    """Return what to say of a column that no row of some sources has."""
    there = list(dict.fromkeys(name for source in sources for name in _columns(source)))
    close = difflib.get_close_matches(column, there, n=1)
    return Missing(
        sets=", ".join(dict.fromkeys(source.where(0).rpartition(":")[0] for source in sources)),
        near=f" Did you mean {close[0]!r}?" if close else "",
        columns=", ".join(there) or "none",
    )


def _columns(source: Source) -> Iterator[str]:
    for row in source.scan():
        if not isinstance(row, Unreadable):
            yield from filled_columns(row)
            return
