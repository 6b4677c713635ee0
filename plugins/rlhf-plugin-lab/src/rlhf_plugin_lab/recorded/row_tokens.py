"""Tokens of a row that is held out, which its own record has: texts, spans of what is learned, columns of numbers."""

from __future__ import annotations

from typing import Any

from .problems import Problems
from .tokens import ACTION, NUMBERS, TokenColumns, add_differences, short

TEXTS, ORDER, LEARNED = "texts", "order", "learned"


def tokens_of_row(value: Any, problems: Problems) -> TokenColumns | None:
    """Return the tokens of a record's entry ``tokens``; None: it has none, or the entry is of another form.

    Args:
        value: ``{"texts": [...], "order": T indices of texts, "learned": [[start, end], ...], "loss": A numbers or
            null, ...}``, with a number for each of the A tokens in the spans.
    """
    if value is None:
        return None
    text = _texts(value) if isinstance(value, dict) else None
    places = None if text is None else _places(value.get(LEARNED), len(text))
    if text is None or places is None:
        problems.note("tokens of rows that are of another form are left out")
        return None
    columns: dict[str, list[float | None]] = {}
    for name in NUMBERS:
        numbers = value.get(name)
        if isinstance(numbers, list) and len(numbers) == len(places):
            columns[name] = [None] * len(text)
            for at, number in zip(places, numbers, strict=True):
                columns[name][at] = short(number) if isinstance(number, int | float) else None
    learned = set(places)
    columns[ACTION] = [int(at in learned) for at in range(len(text))]
    tokens = TokenColumns(text=text, columns=columns)
    add_differences(tokens)
    return tokens


def _texts(value: dict[str, Any]) -> list[str] | None:
    """Return the text of each token; None: there are none, or not of this form."""
    texts, order = value.get(TEXTS), value.get(ORDER)
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        return None
    if not isinstance(order, list):
        return None
    if not all(type(at) is int and 0 <= at < len(texts) for at in order):
        return None
    return [texts[at] for at in order]


def _places(spans: Any, num_tokens: int) -> list[int] | None:
    """Return the indices of the learned tokens; None: the spans are none, or overlap."""
    if not isinstance(spans, list):
        return None
    places: list[int] = []
    for span in spans:
        if not (isinstance(span, list) and len(span) == 2 and all(type(at) is int for at in span)):
            return None
        start, end = span
        if not (places[-1] if places else -1) < start < end <= num_tokens:
            return None
        places += range(start, end)
    return places
