"""Columns that no row of a set has, found without a model: the run would refuse every row, and says so at its start.

What is said is what the run says, because rows are read by the same functions in the same order. Sets are read up to
the first row that has its columns, whatever else is wrong with it, so nothing is refused that a run takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from pydantic import BaseModel

from rlhf_config.checks.data_files import split_name
from rlhf_core.errors import DataError

from ..forms.form import RowKind
from ..forms.recognizing import formed
from ..rows import MISSING_COLUMN, BadRow, RowProblem, bad_row_error
from ..source import Row, Source, Unreadable
from ..sources import open_source
from .columns_there import are_here

ColumnsT = TypeVar("ColumnsT", bound=BaseModel)
Read = Callable[[Row], object]
"""Reader of a row as far as no model is needed; it raises ``RowProblem``."""


def _unlisted() -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTogether(Generic[ColumnsT]):
    """Sets whose bad rows a run counts together, and its way to read them."""

    option: str
    """Option that names the sets."""
    entries: Sequence[str]
    """Files, folders and hub names, each as it is or as ``NAME=PATH``."""
    split: str
    max_samples: int | None
    """Number of rows that are used of each set, the first ones; None: all."""
    columns: ColumnsT
    """Options with the form and the names of columns."""
    kinds: tuple[RowKind, ...]
    """Kinds of rows that are read."""
    reader: Callable[[ColumnsT], Read]
    """Maker of the reader of rows, from the columns that the rows of a set have."""
    judge: Callable[[ColumnsT], Read] | None = None
    """Maker of a reader of which every row has to pass; None: one row that has its columns is enough."""
    listed_by: Callable[[], str | None] = _unlisted
    """Command that lists all bad rows; None: there is none."""


def refuse_lacking(sets: ReadTogether[ColumnsT]) -> None:
    """Refuse sets of which every row lacks a column, or cannot be read at all, and those with a row that their judge
    refuses.

    Nothing is downloaded: where a set is a hub's, the run finds it out.

    Raises:
        DataError: no row of the sets has its columns, a row is refused, a set cannot be opened, or its rows are of a
            form that another command learns from. The message counts and names rows as a run does.
    """
    if not are_here(sets.entries):
        return
    lacking, refused, total, all_lack = list[BadRow](), list[BadRow](), 0, True
    for entry in sets.entries:
        name, spec = split_name(entry)
        opened = open_source(spec, split=sets.split, name=name)
        found = formed(opened, sets.columns, sets.kinds, spec=spec, option=sets.option, says=False)
        if all_lack:
            without = _rows_without_columns(found.source, sets.reader(found.columns), sets)
            all_lack = without is not None
            lacking += without or ()
        if sets.judge is not None:
            judge = sets.judge(found.columns)
            for index, row in enumerate(islice(found.source.scan(), sets.max_samples)):
                total += 1
                # What cannot be read is left to the run, which says it with the other kinds of bad rows.
                if not isinstance(row, Unreadable) and (problem := _refused(row, judge)):
                    refused.append(BadRow(found.source.where(index), problem.kind, problem.reason))
        elif not all_lack:
            return
    if all_lack and any(row.kind == MISSING_COLUMN for row in lacking):
        raise bad_row_error(lacking, len(lacking), sets.option, sets.listed_by())
    if refused:
        raise bad_row_error(refused, total, sets.option, sets.listed_by())


def _rows_without_columns(
    source: Source, read: Read, sets: ReadTogether[ColumnsT]
) -> list[BadRow] | None:
    """Return all rows of a set as bad ones; None where one has its columns."""
    bad = []
    for index, row in enumerate(islice(source.scan(), sets.max_samples)):
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
        problem = _refused(row, read)
    except DataError:
        return None  # the run says it, with the row
    return problem if problem is not None and problem.kind == MISSING_COLUMN else None


def _refused(row: Row, read: Read) -> RowProblem | None:
    """Return the problem that a reader has with a row."""
    try:
        read(row)
    except RowProblem as problem:
        return problem
    return None
