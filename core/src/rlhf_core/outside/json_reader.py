"""JSON that comes from outside of this process: one reader, whose every failure is a ``BrokenJson`` with its reason.

Python's own reader raises ``RecursionError`` where brackets are deep, and what reads its result ``AttributeError``,
``KeyError`` or ``OverflowError`` where the value has another form. Files that people or kills have changed, rows, and
answers of servers are read here, so that all of these are one error of the file.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from ..errors import ConfigError

MAX_DEPTH = 100
"""Largest number of lists and objects inside of each other; what is written for people has a dozen."""
_SHOWN = 60

FormT = TypeVar("FormT")


class BrokenJson(ValueError):
    """The text is not JSON, or the value does not have the expected form."""


def parse_json(text: str | bytes, *, finite: bool = False) -> Any:
    """Return the value of a JSON text.

    Args:
        finite: refuse ``NaN`` and ``Infinity``, which Python writes and JSON does not have.

    Raises:
        BrokenJson: the text is not JSON, is nested deeper than ``MAX_DEPTH``, or has a number with too many digits.
    """
    try:
        value = json.loads(text, parse_constant=_refused if finite else None)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # broken JSON, broken UTF-8, more digits than Python converts
        raise BrokenJson(f"broken JSON: {error}") from error
    require_shallow(value, text)
    return value


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the object of a JSON text.

    Raises:
        BrokenJson: the text is not JSON, or its value is no object.
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise BrokenJson(f"expected an object, got {_shown(value)}")
    return value


def parse_form(text: str | bytes, form: type[FormT]) -> FormT:
    """Return the value of a JSON text as an instance of a dataclass, whose annotations say what each field holds.

    Lists become tuples where the annotation says so, and whole numbers floats. A field that is unknown, missing or of
    another type is refused.

    Raises:
        BrokenJson: it is no JSON, or has another form.
    """
    value: FormT = _formed(form, parse_json(text), "")
    return value


def read_object(path: Path, expected: str) -> dict[str, Any]:
    """Return the object in a file.

    Args:
        expected: what the file should be, for messages: "a model's config.json".

    Raises:
        ConfigError: the file cannot be read, or holds no such object.
    """
    try:
        return parse_object(path.read_bytes())
    except OSError as error:
        problem = f"{path}: cannot be read ({error.strerror}); expected {expected}"
        raise ConfigError(problem, code="config/unreadable-file") from error
    except BrokenJson as error:
        raise ConfigError(
            f"{path}: {error}; expected {expected}", code="config/unreadable-file"
        ) from error


def _num_brackets(text: str | bytes) -> int:
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{")
    return text.count("[") + text.count("{")


def require_shallow(value: Any, text: str | bytes) -> None:
    """Refuse a value that another reader took from a text, where it is nested deeper than ``MAX_DEPTH``.

    Raises:
        BrokenJson: it is.
    """
    if _num_brackets(text) <= MAX_DEPTH:  # Most texts have few, and are not looked through again.
        return
    level = _nests([value])
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = _nests(
            inner for each in level for inner in (each.values() if isinstance(each, dict) else each)
        )
    if level:
        raise _too_deep()


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no finite number")


def _nests(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]


def _too_deep() -> BrokenJson:
    return BrokenJson(f"nested more than {MAX_DEPTH} lists and objects deep")


def _formed(form: Any, value: Any, place: str) -> Any:
    """Return the value in the form of a type annotation."""
    if form is Any:
        return value
    if is_dataclass(form):
        return _dataclass(typing.cast("type[Any]", form), value, place)
    origin, inner = get_origin(form), get_args(form)
    if origin in (Union, types.UnionType):
        return _one_of(form, inner, value, place)
    if origin is Literal and value in inner:
        return value
    if origin is tuple and isinstance(value, list):
        if inner[-1:] == (...,):
            return tuple(_formed(inner[0], each, f"{place}[{n}]") for n, each in enumerate(value))
        if len(inner) == len(value):
            return tuple(_formed(*each, place) for each in zip(inner, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        return {key: _formed(inner[1], each, f"{place}.{key}") for key, each in value.items()}
    if form is float and type(value) in (int, float):
        try:
            return float(value)
        except OverflowError as error:
            raise BrokenJson(f"{place or 'the value'} is no number that a float holds") from error
    if type(value) is form or (form is types.NoneType and value is None):
        return value
    name = getattr(form, "__name__", str(form)) if origin is None else str(form)
    raise BrokenJson(f"expected {place or 'the value'} to be {name}, got {_shown(value)}")


def _dataclass(form: type[Any], value: Any, place: str) -> Any:
    where = f" in {place}" if place else ""
    if not isinstance(value, dict):
        raise BrokenJson(f"expected an object{where}, got {_shown(value)}")
    known = {field.name: field for field in fields(form)}
    if unknown := sorted(value.keys() - known.keys()):
        raise BrokenJson(f"unknown field {unknown[0]!r:.{_SHOWN}}{where}")
    needed = {
        name
        for name, field in known.items()
        if field.default is MISSING and field.default_factory is MISSING
    }
    if missing := sorted(needed - value.keys()):
        raise BrokenJson(f"missing field {missing[0]!r}{where}")
    hints = typing.get_type_hints(form)
    dot = f"{place}." if place else ""
    return form(**{name: _formed(hints[name], each, dot + name) for name, each in value.items()})


def _one_of(form: Any, choices: tuple[Any, ...], value: Any, place: str) -> Any:
    errors = []
    for choice in choices:
        try:
            return _formed(choice, value, place)
        except BrokenJson as error:
            errors.append(error)
    others = [
        error for choice, error in zip(choices, errors, strict=True) if choice is not types.NoneType
    ]
    if len(others) == 1:
        raise others[0]
    raise BrokenJson(f"expected {place or 'the value'} to be {form}, got {_shown(value)}")


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.{_SHOWN}}"
