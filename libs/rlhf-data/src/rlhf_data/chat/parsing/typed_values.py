"""Values of calls that are written as plain text, with the types that their schemas say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_core.outside.json_reader import BrokenJson, parse_json

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Templates that write values with Python's ``str`` show the policy these words for JSON's."""


def typed_value(text: str, schema: object) -> Any:
    """Return the value that a text stands for; the text itself where the schema says no other type, or it is none.

    Args:
        schema: JSON schema of the argument; of several types that fit, any but a string comes first.
    """
    types = set(_types(schema))
    if types <= {"string"}:
        return text
    try:
        value = parse_json(_PYTHON_WORDS.get(text.strip(), text))
    except BrokenJson:
        return text
    return value if types & _types_of(value) else text


def _types(schema: object) -> Iterator[str]:
    """Yield the types that a schema allows, those of its alternatives included; none where it does not say."""
    if not isinstance(schema, Mapping):
        return
    said = schema.get("type")
    yield from [said] if isinstance(said, str) else said if isinstance(said, list) else ()
    for key in ("anyOf", "oneOf"):
        for each in schema.get(key) or ():
            yield from _types(each)
    for each in schema.get("enum") or ():
        yield from _types_of(each)


def _types_of(value: object) -> set[str]:
    """Return the names that a JSON value's type has in schemas."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
    return {"object"}
