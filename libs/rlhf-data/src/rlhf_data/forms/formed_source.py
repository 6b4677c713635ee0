"""Rows in our own columns, made from rows of one form as they are read; and a source of such rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from ..rows import RowProblem
from ..source import Row, Source, Unreadable, row_error
from .answers import has_history
from .beside import with_history_column, with_system_column
from .chats import KTO_TAG, LABEL, decoded, has_system
from .form import DataForm
from .table import FORMS

LOOKED_AT = 10
"""First rows by which a form is recognized."""


class FormedRows:
    """The way from a row of one form to a row with our own columns, beside those that it has.

    Args:
        names: our own columns -> the columns of the rows, where an option names them.
        is_renamed: the rows get our own columns; False: they are right as they are, but for messages as JSON text.
        as_prompts: what is asked in the rows is wanted, and not what they answer.
        extra: columns that each row is to have; those that it lacks are None.
        label_counts: rows with a label are of another form than those without; False: the form was asked for.
    """

    def __init__(
        self,
        form: DataForm,
        *,
        names: Mapping[str, str],
        is_renamed: bool,
        as_prompts: bool = False,
        extra: Sequence[str] = (),
        label_counts: bool = True,
    ) -> None:
        self._form = form
        self._names = names
        self._is_renamed = is_renamed
        self._as_prompts = as_prompts
        self._extra = extra
        self._label_counts = label_counts

    def made(self, row: Row) -> Row | Unreadable:
        """Return a row in our own columns; unreadable where it is of another form."""
        named = with_names(row, self._names)
        given = decoded(named)
        is_renamed = self._is_renamed or given is not named or has_system(given)
        is_renamed = is_renamed or has_history(given)
        # Where options name columns, a row without them lacks them, whatever else it is.
        is_other = not self._names and not self._matches(given)
        if is_other and (other := another_form(given, self._form)):
            return Unreadable(
                f"expected a row of the form {self._form.name} ({self._form.title}), as the first rows are; this "
                f"one looks like {other.name} ({other.title}). Put it into a file of its own",
                "another form",
            )
        if missing := [name for name in self._extra if name not in row]:
            row = {**row, **dict.fromkeys(missing)}
            given = {**given, **dict.fromkeys(missing)}
        if not is_renamed:
            return row
        try:
            made = self._form.own(with_history_column(given, self._form.keys))
            made = with_system_column(made, self._form.keys)
            if self._as_prompts and self._form.prompt is not None:
                made = self._form.prompt(made)
        except RowProblem as problem:
            return Unreadable(problem.reason, problem.kind)
        # The user's names stay, so that messages about a row have them.
        return {**made, **{name: made[own] for own, name in self._names.items() if own in made}}

    def _matches(self, row: Row) -> bool:
        return self._form.matches(row) or (
            not self._label_counts and self._form.matches(without_label(row))
        )


class FormedSource:
    """See ``Source``: the rows of another one in our own columns."""

    def __init__(self, source: Source, rows: FormedRows) -> None:
        self.name = source.name
        self.where = source.where
        self._source = source
        self._rows = rows
        self._is_needed = True

    def __len__(self) -> int:
        return len(self._source)

    @property
    def as_read(self) -> Source:
        """The other source itself, once all rows were looked at and none of them is made into another; else this."""
        return self if self._is_needed else self._source

    def row(self, index: int) -> Row:
        """Return the row of an index in our own columns.

        Raises:
            DataError: the row cannot be read, or is of another form.
        """
        made = self._rows.made(self._source.row(index))
        if isinstance(made, Unreadable):
            raise row_error(self.where(index), made)
        return made

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[Row | Unreadable]:
        """Yield all rows in order, with all their columns: a form may be told by any of them."""
        num_as_read = 0
        for row in self._source.scan():
            made = row if isinstance(row, Unreadable) else self._rows.made(row)
            num_as_read += made is row
            self._is_needed &= num_as_read < len(self)
            yield made


def with_names(row: Row, names: Mapping[str, str]) -> Row:
    """Return a row whose columns that options name have our own names too."""
    found = {own: row[given] for own, given in names.items() if given in row}
    return {**row, **found} if found else row


def without_label(row: Row) -> Row:
    """Return a row without what says whether its answer is good."""
    return {name: value for name, value in row.items() if name not in (LABEL, KTO_TAG)}


def another_form(row: Row, expected: DataForm) -> DataForm | None:
    """Return the form of a row that is not of the expected one; None: it is a bad row of that.

    So is a row that has the columns, with values of wrong types.
    """
    if expected.is_own and all(name in row for name in expected.keys.values()):
        return None
    found = [form for form in FORMS if form.matches(row) and not form.is_part_of(expected)]
    return next((form for form in found if form.kind is expected.kind), found[0] if found else None)


def first_rows(source: Source) -> list[Row]:
    """Return the first rows that can be read."""
    rows = islice(source.scan(), LOOKED_AT)
    return [row for row in rows if not isinstance(row, Unreadable)]
