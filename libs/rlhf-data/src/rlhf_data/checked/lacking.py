"""Columns that no row of a set has, found without a model: the run would refuse every row, and says so at its start.

What is said is what the run says, because rows are read by the same functions in the same order. Sets are read up to
the first row that has its columns, whatever else is wrong with it, so nothing is refused that a run takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from pydantic import BaseModel

from rlhf_config.checks.data_files import split_name
from rlhf_core.errors import DataError

from ..forms.form import RowKind
from ..forms.opened_sets import OpenedSets, WantedSets
from ..rows import MISSING_COLUMN, BadRow, RowProblem, bad_row_error
from ..source import Row, Source, Unreadable
from .columns_there import are_here

ColumnsT = TypeVar("ColumnsT", bound=BaseModel)
Read = Callable[[Row], object]
"""Reader of a row as far as no model is needed; it raises ``RowProblem``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTogether(Generic[ColumnsT]):
    """Sets whose bad rows a run counts together, and its way to read them."""

    wanted: WantedSets
    columns: ColumnsT
    """Options with the form and the names of columns."""
    kinds: tuple[RowKind, ...]
    reader: Callable[[ColumnsT], Read]
    """Maker of the reader of rows, from the columns that the rows of a set have."""
    listed_by: Callable[[], str | None] = lambda: None
    """Command that lists all bad rows; None: there is none."""
    opened: OpenedSets = field(default_factory=lambda: OpenedSets(says=False))
    """Sets that are open already; those that are opened here join them."""


def refuse_lacking(sets: ReadTogether[ColumnsT]) -> None:
    """Refuse sets of which every row lacks a column, or cannot be read at all.

    Nothing is downloaded: where a set is a hub's, the run finds it out.

    Raises:
        DataError: no row of the sets has its columns, a set cannot be opened, or its rows are of a form that another
            command learns from.
    """
    if not are_here(sets.wanted.entries):
        return
    bad: list[BadRow] = []
    for entry in sets.wanted.entries:
        found = _rows_without_columns(sets, entry)
        if found is None:
            return
        bad += found
    if any(row.kind == MISSING_COLUMN for row in bad):
        raise bad_row_error(bad, len(bad), sets.wanted.option, sets.listed_by())


def refuse_bad(sets: ReadTogether[ColumnsT]) -> None:
    """Refuse sets of which a row has a problem that their reader finds. All rows are read.

    Raises:
        DataError: there is such a row; the message counts and names them as a run does.
    """
    if not are_here(sets.wanted.entries):
        return
    bad, total = list[BadRow](), 0
    for entry in sets.wanted.entries:
        source, read = _opened(sets, entry)
        for index, row in enumerate(islice(source.scan(), sets.wanted.max_samples)):
            total += 1
            if isinstance(row, Unreadable):
                continue  # the run says it, with the other kinds of bad rows
            try:
                read(row)
            except RowProblem as problem:
                bad.append(BadRow(source.where(index), problem.kind, problem.reason))
    if bad:
        raise bad_row_error(bad, total, sets.wanted.option, sets.listed_by())


def _opened(sets: ReadTogether[ColumnsT], entry: str) -> tuple[Source, Read]:
    """Return a set whose rows have our own columns, and the reader of its rows."""
    wanted, (name, spec) = sets.wanted, split_name(entry)
    found = sets.opened.open(sets.columns, spec, wanted.split, name, wanted.option, sets.kinds)
    return found.source, sets.reader(found.columns)


def _rows_without_columns(sets: ReadTogether[ColumnsT], entry: str) -> list[BadRow] | None:
    """Return all rows of a set as bad ones; None where one has its columns."""
    source, read = _opened(sets, entry)
    bad = []
    for index, row in enumerate(islice(source.scan(), sets.wanted.max_samples)):
        problem = _problem(row, read)
        if problem is None:
            return None
        bad.append(BadRow(source.where(index), problem.kind, problem.reason))
    return bad


def _problem(row: Row | Unreadable, read: Read) -> RowProblem | None:
    """Return the problem of a row that lacks a column, or cannot be read; None of any other row."""
    if isinstance(row, Unreadable):
        return RowProblem(row.kind, row.reason)
    try:
        read(row)
    except RowProblem as problem:
        return problem if problem.kind == MISSING_COLUMN else None
    except DataError:
        return None  # the run says it, with the row
    return None
