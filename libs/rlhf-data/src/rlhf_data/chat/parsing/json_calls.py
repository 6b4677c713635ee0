"""Tool calls that are written as JSON objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from rlhf_core.contracts.environment import ToolCall

_ARGUMENTS = ("arguments", "parameters")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def read_call(text: str, number: int) -> ToolCall | str:
    """Return the call in a JSON object, with its arguments as written; a reason if the object is not a call.

    Args:
        number: index of the call in its answer, of which its id is made.
    """
    try:
        members = dict(_members(text.strip()))
    except (ValueError, RecursionError) as error:
        return f"expected a JSON object with name and arguments, got {_shown(text)}: {error}"
    name = _text(members.get("name", "null"))
    written = next((members[key] for key in _ARGUMENTS if key in members), "{}")
    identity = _text(members.get("id", "null")) or f"call_{number}"
    if not name:
        return f"expected a JSON object with a name, got {_shown(text)}"
    return call_of(name, written, identity)


def call_of(name: str, arguments: str, identity: str) -> ToolCall | str:
    """Return a call with arguments that have to be a JSON object, or the text of one; a reason if they are none."""
    written = arguments.strip() or "{}"
    try:
        value = _decoded(written)
        if isinstance(value, str):
            written, value = value, _decoded(value)
    except (ValueError, RecursionError) as error:
        return f"{name}: expected arguments in JSON, got {_shown(arguments)}: {error}"
    if not isinstance(value, dict):
        return f"{name}: expected arguments as a JSON object, got {_shown(arguments)}"
    return ToolCall(name=name, arguments=written, id=identity)


def objects_in(text: str) -> Iterator[str]:
    """Yield the JSON values of a list, or of a row of values with separators between; as they are written.

    Raises:
        ValueError: something else is there.
    """
    place, end = 0, len(text.rstrip())
    closing = ""
    if text[:end].lstrip().startswith("["):
        place = text.index("[") + 1
        closing = "]"
    while (place := _behind(text, place, " \t\r\n,;")) < end:
        if closing and text[place] == closing:
            if _behind(text, place + 1, " \t\r\n") < end:
                raise ValueError(
                    f"expected nothing behind the list, got {_shown(text[place + 1 :])}"
                )
            return
        _, stop = _DECODER.raw_decode(text, place)
        yield text[place:stop]
        place = stop
    if closing:
        raise ValueError("the list has no end")


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of a JSON object with their values as they are written."""
    value, end = _DECODER.raw_decode(text)
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}")
    if text[end:].strip():
        raise ValueError(f"something follows: {_shown(text[end:])}")
    place = 1
    while text[place := _behind(text, place, " \t\r\n,")] != "}":
        key, place = _DECODER.raw_decode(text, place)
        place = _behind(text, place, " \t\r\n:")
        _, stop = _DECODER.raw_decode(text, place)
        yield key, text[place:stop]
        place = stop


def _behind(text: str, place: int, skipped: str) -> int:
    while place < len(text) and text[place] in skipped:
        place += 1
    return place


def _decoded(text: str) -> Any:
    value, end = _DECODER.raw_decode(text)
    if text[end:].strip():
        raise ValueError(f"something follows: {_shown(text[end:])}")
    return value


def _text(written: str) -> str:
    value = json.loads(written)
    return value if isinstance(value, str) else ""


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
