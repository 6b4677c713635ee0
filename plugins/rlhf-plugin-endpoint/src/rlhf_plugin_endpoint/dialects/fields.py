"""Fields of a request's JSON object, read with their types and ranges."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from rlhf_core.outside.json_reader import BrokenJson, require_shallow

from .problems import RequestProblem


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        RequestProblem: it is no JSON, no object, nested too deeply, or holds half of a surrogate pair.
    """
    try:
        # Stricter than Python's reader: half of a surrogate pair is refused here, and not where it is first written.
        value = orjson.loads(body)
        require_shallow(value, body)
    except (orjson.JSONDecodeError, BrokenJson) as error:
        raise RequestProblem(f"the body is no JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise RequestProblem(f"expected a JSON object, got {kind_of(value)}", code="invalid_json")
    return value


def kind_of(value: object) -> str:
    """Return what a JSON value is, in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return f"the number {value!r}"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def wrong(where: str, expected: str, value: object) -> RequestProblem:
    """Return the problem of a field that is not as expected."""
    return RequestProblem(
        f"{where}: expected {expected}, got {kind_of(value)}", code="invalid_type", parameter=where
    )


def text_of(value: object, where: str) -> str:
    """Return a string."""
    if not isinstance(value, str):
        raise wrong(where, "a string", value)
    return value


def object_of(value: object, where: str) -> Mapping[str, Any]:
    """Return an object."""
    if not isinstance(value, dict):
        raise wrong(where, "an object", value)
    return value


def array_of(value: object, where: str) -> Sequence[Any]:
    """Return an array."""
    if not isinstance(value, list):
        raise wrong(where, "an array", value)
    return value


def objects_of(value: object, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects of an array, each behind its place in the request."""
    places = ((f"{where}[{index}]", each) for index, each in enumerate(array_of(value, where)))
    return [(place, object_of(each, place)) for place, each in places]


def role_of(message: Mapping[str, Any], where: str, roles: Collection[str]) -> str:
    """Return the role of a message.

    Raises:
        RequestProblem: it is none of ``roles``.
    """
    role = text_of(message.get("role"), f"{where}.role")
    if role not in roles:
        *others, last = roles
        raise RequestProblem(
            f"{where}.role is {role!r}; expected {', '.join(others)} or {last}",
            code="unknown_role",
            parameter=f"{where}.role",
        )
    return role


def refuse(body: Mapping[str, Any], names: Sequence[str], why: str) -> None:
    """Refuse a body that has one of some fields.

    Args:
        why: the sentence that begins with the field's name.

    Raises:
        RequestProblem: it has.
    """
    for name in names:
        if body.get(name):
            raise RequestProblem(f"{name} {why}", code="unsupported", parameter=name)


def integer(body: Mapping[str, Any], name: str, *, low: int, high: int | None = None) -> int | None:
    """Return a whole number in its range; None if the field is missing or null."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise wrong(name, "a whole number", value)
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RequestProblem(
            f"{name} is {value}; expected a number {limit}", code="out_of_range", parameter=name
        )
    return value


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Return a boolean; False if the field is missing or null."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(name, "a boolean", value)
    return bool(value)


def strings(body: Mapping[str, Any], name: str, *, most: int) -> tuple[str, ...]:
    """Return a string or an array of strings as a tuple; empty strings are refused."""
    value = body.get(name)
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else array_of(value, name)
    if len(found) > most:
        raise RequestProblem(
            f"{name} has {len(found)} strings; expected at most {most}",
            code="out_of_range",
            parameter=name,
        )
    texts = tuple(text_of(each, f"{name}[{index}]") for index, each in enumerate(found))
    if "" in texts:
        raise RequestProblem(
            f"{name} has an empty string, which every text contains", parameter=name
        )
    return texts
