"""Tool calls between an opening and a closing mark: JSON as Hermes and Qwen write it, or tags as Qwen3-Coder and GLM
do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlhf_core.contracts.environment import ToolCall
from rlhf_core.outside.json_reader import BrokenJson, parse_json

from .json_calls import read_call
from .pieces import CallsRead, Piece, calls_between, text_of

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Templates that write values with Python's ``str`` show the policy these words for JSON's."""

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*)</function>\s*", flags=re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", flags=re.DOTALL)
_KEYED = re.compile(r"\s*([^\s<>{}\[\]\"]+)\s*(<arg_key>.*)?", flags=re.DOTALL)
_ARGUMENT = re.compile(
    r"\s*<arg_key>\s*([^<>]*?)\s*</arg_key>\s*<arg_value>(.*?)</arg_value>", flags=re.DOTALL
)


def read_blocks(pieces: Sequence[Piece], tools: Sequence[Mapping[str, Any]] = ()) -> CallsRead:
    """Return the calls between ``<tool_call>`` and ``</tool_call>``.

    Args:
        tools: schemas of the functions, by which the values of tags have types; without one they are texts.
    """
    return calls_between(
        pieces, OPEN, CLOSE, lambda inside, number: [_call(text_of(inside), number, tools)]
    )


def _call(text: str, number: int, tools: Sequence[Mapping[str, Any]]) -> ToolCall | str:
    if (tagged := _FUNCTION.fullmatch(text)) is not None:  # Qwen3-Coder
        name, body, argument = tagged[1], tagged[2], _PARAMETER
    elif (keyed := _KEYED.fullmatch(text)) is not None and (keyed[2] or _is_tool(keyed[1], tools)):
        name, body, argument = keyed[1], keyed[2] or "", _ARGUMENT  # GLM
    else:
        return read_call(text, number)
    rest = argument.sub("", body)
    if rest.strip():
        return f"{name}: expected parameters alone, got {rest.strip()[:80]!r}"
    schemas = _schemas(name, tools)
    values = {key: typed_value(value, schemas.get(key)) for key, value in argument.findall(body)}
    return ToolCall(
        name=name, arguments=json.dumps(values, ensure_ascii=False), id=f"call_{number}"
    )


def _is_tool(name: str, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a name is that of a function: a call without arguments is no more than a name."""
    return any(tool.get("function", tool).get("name") == name for tool in tools)


def _schemas(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the schema of each argument of a function; none for one that is not described."""
    for tool in tools:
        described = tool.get("function", tool)
        if described.get("name") == name:
            found = (described.get("parameters") or {}).get("properties")
            return found if isinstance(found, Mapping) else {}
    return {}


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
