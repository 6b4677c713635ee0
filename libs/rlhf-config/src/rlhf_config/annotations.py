"""Conversion of written values to the types of their options, before pydantic checks ranges.

pydantic alone would take ``true`` for 1 and refuse a single word for a list. TOML cannot write None, so the word
``none`` means it in files and flags alike, wherever the option's type has a None.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from .layers import Words

NONE = "none"
"""The word for None in flags and files."""


class Mismatch(ValueError):
    """A value whose shape or kind is not its option's; the message says what was expected."""


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone; ``Annotated`` is looked through."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(part for member in get_args(annotation) for part in alternatives(member))
    return (annotation,)


def admits_none(annotation: Any) -> bool:
    """True when the option can be unset."""
    return any(part is None or part is type(None) for part in alternatives(annotation))


def item_type(annotation: Any) -> Any | None:
    """The type of a list option's items, or None when the option takes one value."""
    for part in alternatives(annotation):
        origin = get_origin(part) or part
        if isinstance(origin, type) and issubclass(origin, Collection):
            if issubclass(origin, str | bytes | Mapping | BaseModel):
                continue
            return (*get_args(part), str)[0]
    return None


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The model of a nested section, or None."""
    for part in alternatives(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def is_table(annotation: Any) -> bool:
    """True when anything may stand below the option: it is a mapping with free keys."""
    return any(
        isinstance(get_origin(part) or part, type) and issubclass(get_origin(part) or part, Mapping)
        for part in alternatives(annotation)
    )


def convert(annotation: Any, value: Any) -> Any:
    """Return ``value`` in the shape of ``annotation``: words become scalars or lists, ``none`` becomes None.

    Numbers from the command line stay text, which pydantic reads; those from files must be numbers.

    Raises:
        Mismatch: the value has the wrong shape or kind.
    """
    if isinstance(value, Words):
        return _from_words(annotation, value)
    if value == NONE and admits_none(annotation):
        return None
    if (item := item_type(annotation)) is not None:
        values = list(value) if isinstance(value, list | tuple) else [value]
        return [_from_file(item, entry) for entry in values]
    if is_table(annotation) and isinstance(value, Mapping):
        return _table(value)
    return _from_file(annotation, value)


def _table(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with free keys, and tables in it: the last of a flag's words is the text of its entry, and a flag
    without one says true."""
    kept: dict[str, Any] = {}
    for key, entry in entries.items():
        if isinstance(entry, Words):
            kept[key] = entry[-1] if entry else True
        else:
            kept[key] = _table(entry) if isinstance(entry, Mapping) else entry
    return kept


def type_name(annotation: Any) -> str:
    """Return the type of an option as help shows it: ``INT``, ``a|b``, ``TEXT...``."""
    if (item := item_type(annotation)) is not None:
        return f"{type_name(item)}..."
    names = []
    for part in alternatives(annotation):
        if part is type(None) or part is None:
            names.append(NONE)
        elif get_origin(part) is Literal:
            names += [str(choice) for choice in get_args(part)]
        else:
            names.append(_NAMES.get(part, "TEXT"))
    return "|".join(dict.fromkeys(names))


_NAMES: dict[Any, str] = {int: "INT", float: "NUMBER", bool: "true|false", str: "TEXT"}


def _from_words(annotation: Any, words: Words) -> Any:
    if item_type(annotation) is not None:
        if not words:
            raise Mismatch("expected at least one value")
        return [] if list(words) == [NONE] or list(words) == [""] else list(words)
    if not words:
        if bool in alternatives(annotation):
            return True
        raise Mismatch("expected a value")
    if len(words) > 1:
        raise Mismatch(
            f"expected one value, got {len(words)} ({', '.join(words[:4])}); give it once, and "
            "quote text that has spaces"
        )
    (word,) = words
    if word == NONE and admits_none(annotation):
        return None
    return _choices(annotation).get(word, word)


def _choices(annotation: Any) -> dict[str, Any]:
    """Return the choices of a ``Literal`` by their text in flags; a choice itself may be a number."""
    literals = [kind for kind in alternatives(annotation) if get_origin(kind) is Literal]
    return {str(choice): choice for kind in literals for choice in get_args(kind)}


def _from_file(annotation: Any, value: Any) -> Any:
    kinds = alternatives(annotation)
    numbers = int in kinds or float in kinds
    if isinstance(value, bool) and numbers and bool not in kinds:
        raise Mismatch("expected a number")
    if isinstance(value, str) and str not in kinds and not _takes_text(kinds):
        if bool in kinds:
            raise Mismatch("expected true or false, without quotes")
        if numbers:
            raise Mismatch("expected a number, without quotes")
    if isinstance(value, int) and not isinstance(value, bool) and kinds == (bool,):
        raise Mismatch("expected true or false")
    return value


def _takes_text(kinds: tuple[Any, ...]) -> bool:
    return any(
        get_origin(kind) is Literal or kind not in (int, float, bool, type(None)) for kind in kinds
    )
