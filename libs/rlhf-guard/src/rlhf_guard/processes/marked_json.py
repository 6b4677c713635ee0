"""Plain values as strict JSON and back. There is no pickle.

What JSON lacks is marked and restored: bytes, dates, and numbers that are not finite. NumPy values become lists and
numbers, tuples become lists. The text is ASCII only, so that lone surrogates survive. A value of any other type is
refused.
"""

from __future__ import annotations

import base64
import copy
import datetime
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from rlhf_core.lazy import np

_MARK = "\0rlhf"
_MARK_IN_JSON = json.dumps(_MARK)
_MARKED_OBJECT = ("{" + _MARK_IN_JSON).encode("ascii")
_DATES = {cls.__name__: cls for cls in (datetime.datetime, datetime.date, datetime.time)}
_ATOMS = frozenset({str, int, float, bool, type(None), bytes})


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the message as JSON on one line, without the line's end.

    Raises:
        TypeError: it holds a value of another type; the text is that type's name.
        ValueError: it holds itself.
        RecursionError: it is nested too deeply.
    """
    made = 0

    def marked(value: Any) -> Any:
        nonlocal made
        result = _marked(value)
        made += isinstance(result, dict) and _MARK in result
        return result

    try:
        text = _json(message, marked)
    except ValueError:  # A number that is not finite, or a circle, which the second way finds too.
        text = None
    if text is None or text.count(_MARK_IN_JSON) > made:  # Or a value holds the mark itself.
        text = _json(_escaped(message), _marked)
    return text.encode("ascii")


def decode(text: bytes) -> dict[str, Any]:
    """Return the message that ``encode`` wrote.

    Raises:
        ValueError: it is no JSON, or holds an unknown mark.
        RecursionError: it is nested too deeply.
        LookupError, TypeError: a mark is not as ``encode`` writes it.
    """
    # The hook is called for every object, so it is used only if the text has a mark.
    hook = _restored if _MARKED_OBJECT in text else None
    message: dict[str, Any] = json.loads(text, object_hook=hook, parse_constant=_refused)
    return message


def copied(value: Any) -> Any:
    """Return a copy of a value of a data row; much faster than ``copy.deepcopy`` for values that JSON can hold."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, Mapping):
        return {key: copied(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [copied(entry) for entry in value]
    return copy.deepcopy(value)


def _json(message: Any, default: Any) -> str:
    return json.dumps(message, default=default, separators=(",", ":"), allow_nan=False)


def _marked(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_MARK: "bytes", "value": base64.b64encode(value).decode("ascii")}
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        # A subclass (such as a data-frame library's timestamp) comes back as the standard type.
        name = next(name for name, cls in _DATES.items() if isinstance(value, cls))
        return {_MARK: name, "value": value.isoformat()}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return _escaped(value.item())
    if isinstance(value, np.ndarray):
        return _escaped(value.tolist())
    raise TypeError(type(value).__name__)


def _escaped(value: Any) -> Any:
    """Return the value with marks in the place of numbers that are not finite, and of dicts that have the mark as a
    key."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_MARK: "float", "value": repr(float(value))}
    if isinstance(value, Mapping):
        entries = {key: _escaped(entry) for key, entry in value.items()}
        return {_MARK: "items", "value": list(entries.items())} if _MARK in value else entries
    if isinstance(value, list | tuple):
        return [_escaped(entry) for entry in value]
    return value


def _restored(value: dict[str, Any]) -> Any:
    kind = value.get(_MARK)
    if kind is None:
        return value
    if kind == "items":
        return dict(value["value"])
    if kind == "bytes":
        return base64.b64decode(value["value"])
    if kind == "float":
        return float(value["value"])
    return _DATES[kind].fromisoformat(value["value"])


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
