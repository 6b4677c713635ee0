"""Calls of tools in the form that a chat template writes: arguments as an object or as JSON text, beside an empty
content or none.

OpenAI's messages have JSON text. A template that writes objects makes a text in JSON of it, with quotes and backslashes
that no parser of calls reads, or refuses it; one that writes texts refuses an object, or shows Python's spelling. Which
of them a template writes is tried once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rlhf_core.batch.task import Message
from rlhf_core.outside.json_reader import BrokenJson, parse_json

from .pieces import Tools, function_of
from .problem import TemplateProblem

Show = Callable[[Sequence[Message], Tools | None], str]
"""Function from messages and tools to their rendering; raises TemplateProblem."""

_NAME, _KEY, _VALUE = "Zx7Qvn", "Zx7Qvk", "Zx7Qvv"
"""Texts that no template contains or changes."""
_TRIED = {_KEY: _VALUE}
_USER: Message = {"role": "user", "content": "Hello"}
_TOOL = {"name": _NAME, "description": "Looks.", "parameters": {"type": "object", "properties": {}}}


class _Form(NamedTuple):
    """Form of a message with calls."""

    empty: str | None
    """Content of a message that says nothing beside its calls."""
    is_text: bool
    """Whether arguments are JSON text."""


class Calls:
    """Fits the calls of messages to a template.

    Args:
        show: renders messages; asked some times.
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self._forms: dict[bool, _Form | None] = {}

    def fitted(self, messages: Sequence[Message], tools: Tools | None) -> list[Message]:
        """Return messages whose calls have the form that the template writes; as they are where it writes none.

        Arguments that are no JSON object stay as they are.
        """
        if not any(message.get("tool_calls") for message in messages):
            return list(messages)
        has_tools = bool(tools)  # a tokenizer may have a template of its own for chats with tools
        if has_tools not in self._forms:
            self._forms[has_tools] = self._tried(has_tools)
        form = self._forms[has_tools]
        if form is None:
            return list(messages)
        return [_in_form(message, form) for message in messages]

    def _tried(self, has_tools: bool) -> _Form | None:
        tools = [{"type": "function", "function": _TOOL}] if has_tools else None
        call = {
            "id": "call00000",
            "type": "function",
            "function": {"name": _NAME, "arguments": _TRIED},
        }
        tried: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        for form in (_Form("", False), _Form("", True), _Form(None, False), _Form(None, True)):
            try:
                text = self._show([_USER, _in_form(tried, form)], tools)
            except TemplateProblem:
                continue
            shown = text.rpartition(_NAME)[2]
            if _KEY in shown and _VALUE in shown and repr(_TRIED) not in shown:
                return form
        return None


def _in_form(message: Message, form: _Form) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, Sequence) or isinstance(calls, str) or not calls:
        return message
    made = {**message, "tool_calls": [_call(call, form) for call in calls]}
    if not message.get("content"):
        made["content"] = form.empty
    return made


def _call(call: Any, form: _Form) -> Any:
    function = function_of(call)
    if not function:
        return call
    arguments = _object(function.get("arguments"))
    if form.is_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    bare = (
        "function" not in call
    )  # as some data sets have it; most templates want an object of its own
    own = {key: call[key] for key in ("name", "arguments") if key in call} if bare else function
    rest = {key: call[key] for key in call if key != "function" and not (bare and key in own)}
    return {"type": "function", **rest, "function": {**own, "arguments": arguments}}


def _object(arguments: Any) -> Any:
    """Return arguments as an object, empty where there are none; as they are where they are no JSON object."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        try:
            found = parse_json(arguments, finite=True)
        except BrokenJson:
            return arguments
        return found if isinstance(found, Mapping) else arguments
    return arguments
