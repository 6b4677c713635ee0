"""Forms that clients demand of answers: JSON, JSON of a schema, or the call of a tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .fields import object_of, text_of
from .problems import RequestProblem

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
FORCING = ("required", "any")
"""Values of ``tool_choice`` that force some call."""
JSON_FORMATS = ("json_object", "json_schema")
"""Formats that an engine can enforce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """Demands on an answer."""

    schema: Mapping[str, Any] | None = None
    """JSON schema of the whole answer; None: it is no JSON."""
    calls: tuple[Mapping[str, Any], ...] = ()
    """Functions of which the answer may be a call, in OpenAI's form for chats."""
    free: bool = False
    """Whether the answer is any text, in which calls alone have a form."""
    once: bool = False
    """Whether free text has one call at most."""


def form_of(body: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> AnswerForm | None:
    """Return the form that a body asks for; None: any text.

    A forced tool wins over a format, which is that of an answer without a call. Where tools may be called, an answer of
    a format may be a call instead. Where nothing else is demanded and a tool is strict, the answer is free until it
    calls: then the call is of one of the tools, with arguments of the schema where the tool is strict.

    Args:
        tools: the functions that the policy may call.

    Raises:
        RequestProblem: a forced tool or a schema is missing.
    """
    name = forced_tool(body.get("tool_choice"))
    if name is not None:
        calls = tuple(tool for tool in tools if name in ("", tool["function"]["name"]))
        if not calls:
            known = ", ".join(repr(tool["function"]["name"]) for tool in tools) or "none"
            raise RequestProblem(
                f"tool_choice asks for {f'the tool {name!r}' if name else 'a tool'}, and tools has {known}",
                parameter="tool_choice",
            )
        return AnswerForm(calls=calls)
    schema = _schema(body)
    if schema is not None:
        return AnswerForm(schema=schema, calls=tuple(tools))
    strict = strict_names(body)
    if not any(tool["function"]["name"] in strict for tool in tools):
        return None
    held = tuple(tool if tool["function"]["name"] in strict else _loose(tool) for tool in tools)
    once = body.get("parallel_tool_calls") is False
    return AnswerForm(calls=held, free=True, once=once)


def strict_names(body: Mapping[str, Any]) -> set[object]:
    """Return the names of the tools whose arguments have to be of their schemas."""
    tools = body.get("tools")
    objects = [each for each in tools if isinstance(each, dict)] if isinstance(tools, list) else []
    functions = [each.get("function", each) for each in objects]
    return {each.get("name") for each in functions if isinstance(each, dict) and each.get("strict")}


def _loose(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool that takes any arguments."""
    return {**tool, "function": {**tool["function"], "parameters": ANY_OBJECT}}


def forced_tool(choice: object) -> str | None:
    """Return the name of the tool that a choice forces; empty: any; None: it forces none."""
    if choice in FORCING:
        return ""
    if not isinstance(choice, dict):
        return None
    if choice.get("type") in FORCING:
        return ""
    if choice.get("type") not in ("function", "tool"):
        return None
    named = choice.get("function", choice)
    return text_of(object_of(named, "tool_choice.function").get("name"), "tool_choice.name")


def format_of(body: Mapping[str, Any]) -> tuple[object, str]:
    """Return the format that a chat or a response asks for, and the field that has it; None: there is none."""
    if body.get("response_format") is not None:
        return body["response_format"], "response_format"
    text = body.get("text")
    return (text.get("format"), "text.format") if isinstance(text, dict) else (None, "text.format")


def has_json_form(body: Mapping[str, Any]) -> bool:
    """Return whether a body asks for JSON."""
    form, _ = format_of(body)
    return isinstance(form, dict) and form.get("type") in JSON_FORMATS


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    form, where = format_of(body)
    if not isinstance(form, dict):
        return None
    if form.get("type") == "json_object":
        return ANY_OBJECT
    if form.get("type") != "json_schema":
        return None
    schema_form = form.get("json_schema", form)
    return object_of(
        object_of(schema_form, f"{where}.json_schema").get("schema"), f"{where}.schema"
    )
