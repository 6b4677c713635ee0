"""The policy's answers as actions of a server, by its JSON schema of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlhf_core import ConfigError
from rlhf_core.contracts import ToolCall
from rlhf_core.outside.json_reader import BrokenJson, parse_json

from .config import OpenEnvConfig

_MARKED = re.compile(r"<action>\s*(.{1,10000}?)\s*</action>", flags=re.IGNORECASE | re.DOTALL)
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", flags=re.DOTALL)
_TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


class MalformedAction(ValueError):
    """An answer that is no action; the message is for the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionForm:
    """Form of the answers that are actions."""

    kind: Literal["text", "json", "tools"]
    field: str
    """Field that the text fills; empty for other kinds."""
    schema: Mapping[str, Any]
    """Schema of the field, or of the whole action."""

    @property
    def explained(self) -> str:
        """Words that tell the policy the form; empty where any text is an action, or tools are shown."""
        if self.kind == "json":
            return f"Answer with a JSON object of this schema: {json.dumps(self.schema)}"
        if self.kind == "tools" or _is_free_text(self.schema):
            return ""
        allowed = self.schema.get("enum")
        what = (
            f"one of: {', '.join(map(str, allowed))}"
            if allowed
            else f"a JSON {self.schema.get('type', 'value')}"
        )
        return f"Answer with {what}. Write it as <action>...</action>."

    def action(self, text: str) -> dict[str, Any]:
        """Return the action of an answer of the kinds ``text`` and ``json``.

        Raises:
            MalformedAction: it is none.
        """
        clean = text.encode("utf-8", "replace").decode("utf-8")
        if self.kind == "json":
            return _object(clean)
        return {self.field: _value(clean, self.schema)}


def action_form(schema: object, config: OpenEnvConfig) -> ActionForm:
    """Return the form of a server's actions.

    Raises:
        ConfigError: the options ask for a form that the schema does not have.
    """
    whole = schema if isinstance(schema, Mapping) else {}
    found = whole.get("properties")
    properties = {
        name: _resolved(value, whole)
        for name, value in (found if isinstance(found, Mapping) else {}).items()
        if name != "metadata"
    }
    is_tools = {"tool_name", "arguments"} <= set(properties)
    kind = config.action
    if kind == "auto":
        one = config.action_field or len(properties) == 1
        kind = "tools" if is_tools else "text" if one else "json"
    if kind == "text":
        name = config.action_field or (next(iter(properties)) if len(properties) == 1 else "")
        if name not in properties:
            raise ConfigError(
                f"action_field = {config.action_field!r}: expected one of the fields of an action, which are "
                f"{', '.join(properties) or 'none'}; or action = json",
                code="environment/unknown-action-field",
            )
        return ActionForm(kind="text", field=name, schema=properties[name])
    if kind == "tools" and not is_tools:
        raise ConfigError(
            "action = tools: the server's actions are no calls of tools",
            code="environment/actions-no-tools",
        )
    shown = {key: value for key, value in whole.items() if key in ("$defs", "required")}
    return ActionForm(kind=kind, field="", schema={**shown, "properties": properties})


def call_action(call: ToolCall) -> dict[str, Any]:
    """Return the action that calls a tool.

    Raises:
        MalformedAction: its arguments are no JSON object.
    """
    try:
        arguments = parse_json(call.arguments or "{}")
    except BrokenJson as error:
        raise MalformedAction(f"error: the arguments of {call.name} are no JSON") from error
    if not isinstance(arguments, dict):
        raise MalformedAction(f"error: the arguments of {call.name} are no JSON object")
    return {"type": "call_tool", "tool_name": call.name, "arguments": arguments}


def _object(text: str) -> dict[str, Any]:
    fenced = _FENCED.findall(text)
    try:
        value = parse_json(fenced[-1] if fenced else text)
    except BrokenJson as error:
        raise MalformedAction("error: expected one JSON object and nothing else") from error
    if not isinstance(value, dict):
        raise MalformedAction("error: expected a JSON object")
    return value


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    if _is_free_text(schema):
        return text
    marked = _MARKED.findall(text)
    word = (marked[-1] if marked else text).strip()
    allowed = schema.get("enum")
    if isinstance(allowed, list):
        for value in allowed:
            if word == (value if isinstance(value, str) else json.dumps(value)):
                return value
        raise MalformedAction(f"error: expected one of: {', '.join(map(str, allowed))}")
    if schema.get("type") == "string":
        return word
    try:
        value = parse_json(word)
    except BrokenJson as error:
        raise MalformedAction(f"error: expected a JSON {schema.get('type', 'value')}") from error
    kind = _TYPES.get(str(schema.get("type")), object)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
        raise MalformedAction(f"error: expected a JSON {schema.get('type')}")
    return value


def _is_free_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string" and "enum" not in schema


def _resolved(schema: object, whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a field's schema, with the definition that it refers to in place of the reference."""
    if not isinstance(schema, Mapping):
        return {}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        defined = whole.get("$defs")
        found = defined.get(reference.rpartition("/")[2]) if isinstance(defined, Mapping) else None
        return found if isinstance(found, Mapping) else {}
    return schema
