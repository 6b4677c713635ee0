"""Recognition of the form of a set by its first rows, and the columns that its rows have then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

from pydantic import BaseModel

from rlhf_config.common import FormName
from rlhf_core.errors import DataError

from ..reading_log import log
from ..source import Row, Source
from .beside import TOOLS
from .chats import decoded
from .form import DataForm, RowKind, commands_for, unchanged
from .formed_source import FormedRows, FormedSource, first_rows, with_names, without_label
from .table import BY_NAME, FORMS
from .unread import named_by, say_unread_columns, unread_columns

AS_GIVEN = "columns"
"""Value of ``data.form`` with which rows are read by the options that name columns alone."""
COLUMN_OPTIONS = tuple(dict.fromkeys(key for form in FORMS for key in form.keys))
TOOLS_KEY = "tools_key"
_WITH_TOOLS = (
    RowKind.CONVERSATIONS,
    RowKind.RESPONSES,
    RowKind.PAIRS,
    RowKind.JUDGED,
    RowKind.STEPS,
)


ColumnsT = TypeVar("ColumnsT", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognized(Generic[ColumnsT]):
    """The way in which rows are read."""

    columns: ColumnsT
    """The options of columns, which name those of the rows in ``rows``."""
    form: DataForm | None = None
    """None: no form was recognized, or none is wanted."""
    rows: FormedRows | None = None
    """The way to rows with these columns; None: they have them."""
    num_columns: int = 0
    """Number of the columns of the first rows."""
    unread: tuple[str, ...] = ()
    """Columns of the first rows that nothing reads; none of prompts: rewards and environments get whole rows."""

    def say(self, option: str, spec: str) -> None:
        """Log the form, if there is one, and the columns that nothing reads."""
        if self.form is not None:
            say_form(self.form.name, self.num_columns, option, spec)
        say_unread_columns(self.unread, self.columns, option, spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormedSet(Generic[ColumnsT]):
    """A set whose rows have our own columns."""

    source: Source
    found: Recognized[ColumnsT]

    @property
    def columns(self) -> ColumnsT:
        """The options of columns, which name those of ``source``."""
        return self.found.columns

    @property
    def form(self) -> DataForm | None:
        """The form of the rows; None: no form was recognized, or none is wanted."""
        return self.found.form


def formed(
    source: Source,
    columns: ColumnsT,
    kinds: Sequence[RowKind],
    *,
    spec: str = "",
    option: str = "data.train",
    says: bool = True,
) -> FormedSet[ColumnsT]:
    """Return a source whose rows are of a form as one whose rows have our own columns; the log says which form.

    Args:
        columns: options of ``data`` with ``form`` and the names of columns.
        kinds: what the caller can use.
        spec: the set as the user wrote it, for messages.
        option: option that names the set.
        says: False: something else says the form of this set.

    Raises:
        DataError: as from ``recognized``.
    """
    found = recognized(first_rows(source), columns, kinds, spec, spec=spec)
    if says:
        found.say(option, spec)
    if found.rows is not None:
        source = FormedSource(source, found.rows)
    return FormedSet(source=source, found=found)


def recognized(
    rows: Sequence[Row],
    columns: ColumnsT,
    kinds: Sequence[RowKind],
    place: str,
    *,
    spec: str | None = None,
) -> Recognized[ColumnsT]:
    """Return how rows are read whose first ones are given.

    Options that name columns win: a form is one that has these columns, in the user's names.

    Args:
        columns: options of ``data`` with ``form`` and the names of columns.
        kinds: what the caller can use.
        place: where the rows are, for messages.
        spec: the set as ``--data`` of a command takes it; None: it is no such set.

    Raises:
        DataError: the rows are of a form that something else learns from, or ``data.form`` is.
    """
    given = _given(columns)
    wanted: str | None = getattr(columns, "form", None)
    if wanted == AS_GIVEN or getattr(columns, "template", None) is not None:
        return _as_given(rows, columns, kinds)
    if wanted is not None:
        form = _usable(BY_NAME[wanted], kinds, spec)
    else:
        found = _recognized(rows, given, kinds)
        if found is None:
            if not given:
                _refuse_others(rows, kinds, place, spec)
            return _as_given(rows, columns, kinds)
        form = found
    as_prompts = form.kind not in kinds
    keys = {"prompt_key": "prompt"} if as_prompts else form.keys
    update = {key: own for key, own in keys.items() if key not in given}
    extra = []
    if getattr(columns, TOOLS_KEY, "") is None and form.kind in _WITH_TOOLS:
        update[TOOLS_KEY] = TOOLS
        extra.append(TOOLS)
    formed_rows = FormedRows(
        form,
        names=_names(form, given),
        is_renamed=as_prompts or not form.is_own,
        as_prompts=as_prompts,
        extra=extra,
        label_counts=wanted is None,
    )
    found_columns = columns.model_copy(update=update)
    return Recognized(
        columns=found_columns,
        form=form,
        rows=formed_rows,
        num_columns=len({name for row in rows for name in row}),
        unread=()
        if as_prompts or form.kind is RowKind.PROMPTS
        else unread_columns(
            rows,
            named_by(found_columns, without=COLUMN_OPTIONS),
            tuple(form.keys.values()),
            formed_rows.made,
        ),
    )


def _as_given(
    rows: Sequence[Row], columns: ColumnsT, kinds: Sequence[RowKind]
) -> Recognized[ColumnsT]:
    """Return how rows are read by the options that name columns alone."""
    unread = (
        () if RowKind.PROMPTS in kinds else unread_columns(rows, named_by(columns), (), unchanged)
    )
    return Recognized(columns=columns, unread=unread)


def check_name(name: str | None) -> FormName | None:
    """Return a value of ``data.form`` unchanged, after checking that the form exists.

    Raises:
        DataError: there is no such form.
    """
    for known in get_args(FormName):
        if name == known:
            return known  # type: ignore[no-any-return]  # one of the literals
    if name is None:
        return None
    raise DataError(
        f"--form {name}: expected one of {', '.join(get_args(FormName))}",
        code="config/unknown-name",
    )


def say_form(name: str, num_columns: int, option: str, spec: str) -> None:
    """Log the line that says at the start of a run how the rows of a set are read.

    Args:
        name: that of the form.
        num_columns: number of the columns of the first rows, as they are in the file.
    """
    columns = "column" if num_columns == 1 else "columns"
    option = option.removesuffix(".train")
    log.info("%s: %s, %d %s (%s)", option, BY_NAME[name].title, num_columns, columns, spec)


def _given(columns: BaseModel) -> dict[str, Any]:
    """Return the options that name columns, where they are not as they are without the user."""
    fields = type(columns).model_fields
    values = {key: getattr(columns, key) for key in COLUMN_OPTIONS if key in fields}
    return {key: value for key, value in values.items() if value != fields[key].default}


def _recognized(
    rows: Sequence[Row], given: Mapping[str, str], kinds: Sequence[RowKind]
) -> DataForm | None:
    """Return the form of most of the first rows. A row is of the form with the most columns that it matches, and of the
    table's first one among equals."""
    candidates = [form for form in FORMS if form.kind in kinds and given.keys() <= form.keys.keys()]
    votes: Counter[str] = Counter()
    for row in rows:
        matching = [
            form
            for form in candidates
            if form.matches(decoded(with_names(row, _names(form, given))))
        ]
        if matching:
            votes[max(matching, key=lambda form: len(form.keys)).name] += 1
    return BY_NAME[votes.most_common(1)[0][0]] if votes else None


def _names(form: DataForm, given: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that options name, by our own names for them."""
    return {form.keys[key]: name for key, name in given.items() if key in form.keys}


def _usable(form: DataForm, kinds: Sequence[RowKind], spec: str | None) -> DataForm:
    """Return a form that the user named."""
    if form.kind in kinds or (RowKind.PROMPTS in kinds and form.prompt is not None):
        return form
    raise DataError(
        f"--data.form {form.name}: expected a form of {_listed(kinds)}; {form.title} are for "
        f"{_commands(form, spec)}",
        code="data/form-of-others",
    )


def _refuse_others(
    rows: Sequence[Row], kinds: Sequence[RowKind], place: str, spec: str | None
) -> None:
    """Refuse rows that something else learns from. Rows that lack a column alone are left to those who read it."""
    form = _recognized(rows, {}, [kind for kind in RowKind if kind not in kinds])
    if form is None or any(form.is_part_of(one) for one in FORMS if one.kind in kinds):
        return
    way_out = "name the columns (--data.prompt_key COLUMN, ...)"
    # The form that the rows would have without their label.
    as_own = _recognized([*map(without_label, rows)], {}, kinds)
    if RowKind.PROMPTS in kinds and form.prompt is not None:
        way_out = f"add --data.form {form.name} to take their prompts alone, or {way_out}"
    elif as_own is not None:
        way_out = f"add --data.form {as_own.name}, by which a label counts for nothing"
    raise DataError(
        f"{place}: these look like {form.title}; expected {_listed(kinds)}. Such rows are for "
        f"{_commands(form, spec)}\n  To read them here, {way_out}.",
        code="data/other-form",
    )


def _listed(kinds: Iterable[RowKind]) -> str:
    return " or ".join(kinds)


def _commands(form: DataForm, spec: str | None) -> str:
    return ", or ".join(commands_for(form.kind, ["FILE" if spec is None else spec]))
