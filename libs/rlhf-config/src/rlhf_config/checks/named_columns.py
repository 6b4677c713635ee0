"""Columns of rows that a run's options name, by the sets whose rows have to have them."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

_COLUMN = "_key"
"""End of the names of options that name a column."""
_SETS = (
    ("data", "data.train", "data.split"),
    ("data", "eval.data", "eval.split"),
    ("supervised", "supervised.data", "data.split"),
)
"""Section with the columns, option with the sets that are read by it, and option with their split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedColumns:
    """The columns that options name in the rows of some sets."""

    option: str
    """Option that names the sets."""
    sets: tuple[str, ...]
    split: str
    section: BaseModel
    """Options with ``form``, if there is one, and the names of columns."""
    columns: tuple[tuple[str, str], ...]
    """Each option that names a column, and the column. Left out are those with the value that nobody gave."""


def named_columns(run: BaseModel) -> Iterator[NamedColumns]:
    """Yield the columns that a run's options name, for each option with sets to read; none where there is no such."""
    for section, sets, split in _SETS:
        found, entries = _value(run, section), _value(run, sets)
        if not isinstance(found, BaseModel) or not isinstance(entries, tuple) or not entries:
            continue
        columns = tuple(_columns(found, section))
        if columns:
            yield NamedColumns(
                option=sets,
                sets=entries,
                split=str(_value(run, split)),
                section=found,
                columns=columns,
            )


def _value(run: BaseModel, path: str) -> object:
    found: object = run
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _columns(section: BaseModel, name: str) -> Iterator[tuple[str, str]]:
    for field, info in type(section).model_fields.items():
        value = getattr(section, field)
        if not value or value == info.default or not isinstance(value, str):
            continue
        if field.endswith(_COLUMN):
            yield f"{name}.{field}", value
        elif field == "template":
            yield from ((f"{name}.{field}", column) for column in _fields(value))


def _fields(template: str) -> Iterator[str]:
    """Yield the columns of a format string; none of one that is malformed, which its reader refuses."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name]
    except ValueError:
        return
    yield from dict.fromkeys(name.partition("[")[0].partition(".")[0] for name in names)
