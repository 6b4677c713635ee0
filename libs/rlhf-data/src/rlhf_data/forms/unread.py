"""Columns of rows to learn from that nothing reads, and what is known of those whose names mean something."""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Mapping, Sequence

from pydantic import BaseModel

from ..chat.template.pieces import LEARNED_FIELDS
from ..reading_log import log
from ..row_images import USUAL
from ..source import TEMPLATE_KWARGS, Row, Unreadable
from .beside import TOOLS

_KEY = "_key"
"""End of the names of options that name a column."""
_READ_ELSEWHERE = frozenset({*USUAL, TEMPLATE_KWARGS})
"""Columns with a meaning of their own: images, of which the run speaks where it reads none, and variables."""
_OF_OPTION = {
    TOOLS: "tools_key",
    "messages": "messages_key",
    "conversations": "messages_key",
    "response": "response_key",
    "completion": "response_key",
    "text": "text_key",
}
"""Column -> the option that reads it where the command has it."""
_PAIRED = "rlhf dpo and rlhf rm learn from pairs of chosen and rejected"
_COUNTED = "the run computes the reference's log-probs itself"
_TOKENIZED = "texts are tokenized anew"
_MARKED = 'a message is left out of the loss by its own "weight": 0'
_SCORED = "rlhf rm learns a difference of scores, as one column, with --data.margin_key"
_AS_MESSAGE = "write it as messages"
_OF_OTHERS = {
    "margin": "rlhf rm learns it with --data.margin_key margin",
    "score_chosen": _SCORED,
    "score_rejected": _SCORED,
    "chosen_score": _SCORED,
    "rejected_score": _SCORED,
    "chosen_rating": _SCORED,
    "rejected_rating": _SCORED,
    "system": _AS_MESSAGE,
    "system_prompt": _AS_MESSAGE,
    "history": _AS_MESSAGE,
    "label": "rlhf dpo --preference.loss kto learns from it",
    "chosen": _PAIRED,
    "rejected": _PAIRED,
    "weight": "all rows count alike",
    "sample_weight": "all rows count alike",
    "completion_mask": _MARKED,
    "assistant_masks": _MARKED,
    "input_ids": _TOKENIZED,
    "labels": _TOKENIZED,
    "ref_chosen_logps": _COUNTED,
    "ref_rejected_logps": _COUNTED,
    "reference_chosen_logps": _COUNTED,
    "reference_rejected_logps": _COUNTED,
}
"""Column -> what is to be said of it where nothing reads it; the names are those of other trainers and published sets,
too."""


def unread_columns(
    rows: Sequence[Row],
    named: Collection[str],
    own: Sequence[str],
    made: Callable[[Row], Row | Unreadable],
) -> tuple[str, ...]:
    """Return the columns that have a value in one of some rows and that make no difference to what is read of it.

    A column makes none if the row's own columns are the same without it. A value that is empty says nothing, so its
    column is left out.

    Args:
        rows: the first rows of a set, as they are in the file.
        named: columns that are read as they are, such as those of ``named_by``.
        own: our own columns, which are read of each row.
        made: way from a row to one in our own columns; what it does to a row without the column tells whether it reads
            that.
    """
    is_read = _READ_ELSEWHERE.union(named, own)
    found: dict[str, bool] = {}
    for row in rows:
        whole = _own(made(row), own)
        if whole is None:
            continue
        for name in row:
            if name in is_read or found.get(name) is False or not _says_something(name, row[name]):
                continue
            less = _own(made({key: row[key] for key in row if key != name}), own)
            found[name] = less == whole
    return tuple(name for name, is_unread in found.items() if is_unread)


def named_by(columns: BaseModel, *, without: Collection[str] = ()) -> frozenset[str]:
    """Return the columns that options name; that of prompts is none where a template makes them.

    Args:
        without: options that are left out.
    """
    template = getattr(columns, "template", None)
    left_out = {*without, "prompt_key"} if template else set(without)
    values = {
        getattr(columns, key)
        for key in type(columns).model_fields
        if key.endswith(_KEY) and key not in left_out
    }
    fields = string.Formatter().parse(template or "")
    return frozenset(filter(None, values)) | {
        field.partition("[")[0] for _, field, _, _ in fields if field
    }


def said_of_unread(unread: Sequence[str], columns: BaseModel, option: str = "data") -> str:
    """Return columns that nothing reads in words, each with what is known of it.

    Args:
        columns: options that name columns.
        option: option that names the set.
    """
    hints = [(name, _hint(name, columns, option)) for name in unread]
    return ", ".join(f"{name!r} ({hint})" if hint else repr(name) for name, hint in hints)


def say_unread_columns(unread: Sequence[str], columns: BaseModel, option: str, spec: str) -> None:
    """Log the line that says at the start of a run which columns of a set nothing reads; none if there are none.

    It is a warning where a column has a name that means something.

    Args:
        unread: result of ``unread_columns``.
        columns: options that name columns.
        option: option that names the set.
        spec: the set as the user wrote it.
    """
    if unread:
        is_known = any(_hint(name, columns, option) for name in unread)
        say = log.warning if is_known else log.info
        said = said_of_unread(unread, columns, option)
        say("%s: columns that nothing reads: %s (%s)", option.removesuffix(".train"), said, spec)


def _hint(name: str, columns: BaseModel, option: str) -> str | None:
    key = _OF_OPTION.get(name)
    if key in type(columns).model_fields:
        # Held-out sets are read by the columns of ``data``.
        section = "supervised" if option.startswith("supervised") else "data"
        return f"--{section}.{key} {name} reads it"
    return _OF_OTHERS.get(name)


def _own(made: Row | Unreadable, own: Sequence[str]) -> Mapping[str, object] | None:
    return None if isinstance(made, Unreadable) else {name: made.get(name) for name in own}


def _says_something(name: str, value: object) -> bool:
    """Return whether a value is not empty; that a row is learned is the same as saying nothing."""
    return value not in (None, "", [], {}) and not (name in LEARNED_FIELDS and value in (1, True))
