"""Recognition of the form of a set by its first rows, and the columns that its rows have then."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

from pydantic import BaseModel

from ...config.common import FormName
from ...errors import DataError
from ..source import Row, Source
from .beside import TOOLS
from .chats import decoded
from .commands import commands_for
from .form import DataForm, RowKind
from .formed_source import FormedSource, first_rows, with_names
from .table import BY_NAME, FORMS

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

log = logging.getLogger(__name__)

ColumnsT = TypeVar("ColumnsT", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormedSet(Generic[ColumnsT]):
    """A set whose rows have our own columns."""

    source: Source
    columns: ColumnsT
    """The options of columns, which name those of ``source``."""
    form: DataForm | None
    """None: no form was recognized, or none is wanted."""


def formed(
    source: Source,
    columns: ColumnsT,
    kinds: Sequence[RowKind],
    *,
    spec: str = "",
    option: str = "data.train",
) -> FormedSet[ColumnsT]:
    """Return a source whose rows are of a form as one whose rows have our own columns; the log says which form.

    Options that name columns win: a form is one that has these columns, in the user's names.

    Args:
        columns: options of ``data`` with ``form`` and the names of columns.
        kinds: what the caller can use.
        spec: the set as the user wrote it, for messages.
        option: option that names the set.

    Raises:
        DataError: the rows are of a form that something else learns from, or ``data.form`` is.
    """
    rows = first_rows(source)
    given = _given(columns)
    wanted: str | None = getattr(columns, "form", None)
    if wanted == AS_GIVEN or getattr(columns, "template", None) is not None:
        return FormedSet(source=source, columns=columns, form=None)
    if wanted is not None:
        form = _usable(BY_NAME[wanted], kinds, spec)
    else:
        found = _recognized(rows, given, kinds)
        if found is None:
            if not given:
                _refuse_others(rows, kinds, spec)
            return FormedSet(source=source, columns=columns, form=None)
        form = found
    as_prompts = form.kind not in kinds
    keys = {"prompt_key": "prompt"} if as_prompts else form.keys
    update = {key: own for key, own in keys.items() if key not in given}
    extra = []
    if getattr(columns, TOOLS_KEY, "") is None and form.kind in _WITH_TOOLS:
        update[TOOLS_KEY] = TOOLS
        extra.append(TOOLS)
    log.info("%s", describe(form, rows, option, spec))
    return FormedSet(
        source=FormedSource(
            source,
            form,
            names=_names(form, given),
            is_renamed=as_prompts or not form.is_own,
            as_prompts=as_prompts,
            extra=extra,
        ),
        columns=columns.model_copy(update=update),
        form=form,
    )


def check_name(name: str | None) -> FormName | None:
    """Return a value of ``data.form`` as it was written.

    Raises:
        DataError: there is no such form.
    """
    for known in get_args(FormName):
        if name == known:
            return known  # type: ignore[no-any-return]  # one of the literals
    if name is None:
        return None
    raise DataError(f"--form {name}: expected one of {', '.join(get_args(FormName))}")


def describe(form: DataForm, rows: Sequence[Row], option: str, spec: str) -> str:
    """Return the line that says at the start of a run how the rows of a set are read.

    Args:
        rows: the first rows, as they are in the file.
    """
    count = len({name for row in rows for name in row})
    columns = "column" if count == 1 else "columns"
    return f"{option.removesuffix('.train')}: {form.title}, {count} {columns} ({spec})"


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


def _usable(form: DataForm, kinds: Sequence[RowKind], spec: str) -> DataForm:
    """Return a form that the user named.

    Raises:
        DataError: it is of no use here.
    """
    if form.kind in kinds or (RowKind.PROMPTS in kinds and form.prompt is not None):
        return form
    raise DataError(
        f"--data.form {form.name}: expected a form of {_listed(kinds)}; {form.title} are for "
        f"{_alternatives(commands_for(form.kind, [spec]))}"
    )


def _refuse_others(rows: Sequence[Row], kinds: Sequence[RowKind], spec: str) -> None:
    """Refuse rows that something else learns from. Rows that lack a column alone are left to those who read it.

    Raises:
        DataError: the rows are of such a form.
    """
    form = _recognized(rows, {}, [kind for kind in RowKind if kind not in kinds])
    if form is None or any(form.is_part_of(one) for one in FORMS if one.kind in kinds):
        return
    way_out = "name the columns (--data.prompt_key COLUMN, ...)"
    if RowKind.PROMPTS in kinds and form.prompt is not None:
        way_out = f"add --data.form {form.name} to take their prompts alone, or {way_out}"
    raise DataError(
        f"{spec}: these look like {form.title}; expected {_listed(kinds)}. Such rows are for "
        f"{_alternatives(commands_for(form.kind, [spec]))}\n  To read them here, {way_out}."
    )


def _listed(kinds: Iterable[RowKind]) -> str:
    return " or ".join(kinds)


def _alternatives(commands: Sequence[str]) -> str:
    return ", or ".join(commands)
