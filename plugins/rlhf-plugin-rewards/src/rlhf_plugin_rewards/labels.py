"""The right answer of a sample, from its data row."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from numbers import Number
from typing import Any

from rlhf_core import RewardError
from rlhf_core.contracts import value_at
from rlhf_core.outside.json_reader import parse_json

from .boxes import last_boxed
from .readings import as_latex

_ANSWER = "ground_truth"
"""Entry of an object of verl that is the right answer."""
_NOT_FINITE = ("nan", "snan", "inf", "infinity")


def label_of(row: Mapping[str, Any], key: str) -> Any:
    """Return column ``key`` of a sample's row, or the entry of an object in one, as ``value_at`` reads it.

    Raises:
        RewardError: the row has no such column, or the column is empty (None); the message lists the columns.
    """
    try:
        label = value_at(row, key)
    except KeyError:
        raise _missing(row, key) from None
    if label is None:
        raise RewardError(
            f"column {key!r} of this row is empty; expected the right answer. Find all such rows with rlhf data check",
            code="reward/empty-label",
        )
    return label


def text_of(label: Any, key: str, also: str) -> str:
    """Return a label that is one value, such as a text, a number or a date, as text.

    Args:
        key: column of the label.
        also: words for what else the column may have, and for the way out.

    Raises:
        RewardError: it has no text that a response could be, so each would be wrong: nothing, many values, no finite
            number, or the JSON text of an object that holds the answer.
    """
    if _has_text(label):
        return str(label)
    raise RewardError(
        f"column {key!r} of this row has {label!r:.200}; expected a text or a number with the right answer, {also}",
        code="reward/unusable-label",
    )


def accepted_texts(row: Mapping[str, Any], key: str) -> list[str]:
    """Return the texts that ``exact_match`` accepts: the label, or each entry of one that is a list.

    Raises:
        RewardError: as from ``label_of`` and ``text_of``.
    """
    label = label_of(row, key)
    # A list without an answer accepts nothing, as an object does.
    several = [one for one in label if one is not None] if isinstance(label, list | tuple) else []
    also = f"or a list of accepted ones{way_into(label, 'exact_match.label_key', key)}"
    texts = [text_of(one, key, also) for one in several or [label]]
    # A table has whole numbers as floats where a row of the column has none.
    whole = [f"{one:.0f}" for one in several or [label] if isinstance(one, float) and one % 1 == 0]
    return texts + whole


def math_label(row: Mapping[str, Any], key: str) -> str:
    """Return the label of ``math`` as text. A list of one is its element, as data sets with several graders have it.

    Raises:
        RewardError: as from ``label_of`` and ``text_of``.
    """
    label = label_of(row, key)
    also = f"or a list of one. Several values are a text: '3, 4'{way_into(label, 'math.label_key', key)}"
    if isinstance(label, list | tuple) and len(label) == 1:
        (label,) = label
    return text_of(label, key, also)


def final_answer(label: str, key: str) -> str:
    """Return the LaTeX of the answer that a label of ``math`` is, or ends with.

    Raises:
        RewardError: the label is a sentence that may mean several answers.
    """
    # Worked solutions of GSM8K end so.
    answer = label.rpartition("####")[2]
    latex = last_boxed(answer) or as_latex(answer)
    if latex is None:
        raise RewardError(
            f"the label {label[:200]!r} in column {key!r} is a sentence in which more than one answer may be meant; "
            "write the answer alone, such as '3, 4', or mark it: \\boxed{3}, '#### 3'",
            code="reward/ambiguous-label",
        )
    return latex


def way_into(label: Any, option: str, key: str) -> str:
    """Return a sentence with the option that names an entry of a label that is an object; empty: no entry has text."""
    entries = (
        [name for name, value in label.items() if _has_text(value)]
        if isinstance(label, Mapping)
        else []
    )
    if not entries:
        return ""
    near = difflib.get_close_matches(_ANSWER, map(str, entries), n=1)
    return f". An entry of it is named so: --reward.{option} {key}.{(near or entries)[0]}"


def _has_text(label: Any) -> bool:
    if isinstance(label, str):
        return not _holds_an_answer(label)
    # A column of pandas has NaN where a row has no value.
    is_finite = not isinstance(label, Number) or str(label).lstrip("-").lower() not in _NOT_FINITE
    return label is not None and not isinstance(label, Collection) and is_finite


def _holds_an_answer(text: str) -> bool:
    """Return whether a text is the JSON of an object with an entry ``ground_truth``, as a cell of CSV has that of verl.

    Other objects, such as calls of tools, may be right answers.
    """
    if not text.lstrip().startswith("{"):
        return False
    try:
        found = parse_json(text)
    except ValueError:
        return False
    return isinstance(found, Mapping) and _ANSWER in found


def _missing(row: Mapping[str, Any], key: str) -> RewardError:
    names: list[str] = []
    usable: dict[str, str] = {}
    for column, value in row.items():
        inside = [f"{column}.{entry}" for entry in value] if isinstance(value, Mapping) else []
        names += [column, *inside]
        # By the last part: of an object's entries, all begin as a misspelled one does.
        usable = {name.rpartition(".")[2]: name for name in inside or [column]} | usable
    near = difflib.get_close_matches(key.rpartition(".")[2], usable, n=1)
    hint = f" Did you mean {usable[near[0]]!r}?" if near else ""
    return RewardError(
        f"this row has no column {key!r}, from which label_key takes the right answer.{hint} Columns: "
        f"{', '.join(names) or 'none'}",
        code="data/missing-column",
    )
