"""Messages and tools as OpenAI's chat has them, in the form that templates read.

Contents become texts, or parts whose images are references. Arguments of tool calls become objects where they are JSON,
the role ``developer`` is ``system``, and the results of one answer's tool calls stand in the order of the calls, in
whatever order they came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.contracts import Message
from rlhf_core.outside.json_reader import BrokenJson, parse_json

from .fields import array_of, kind_of, object_of, text_of
from .problems import RequestProblem
from .request_images import IMAGE_KINDS, RequestImages, joined, refuse_kind

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MAX_MESSAGES = 100_000
_MAX_LISTED = 8
"""Ids of calls that a message lists, the last ones."""


def read_messages(
    value: object, images: RequestImages, where: str = "messages"
) -> tuple[Message, ...]:
    """Return a chat's messages.

    Raises:
        RequestProblem: one is malformed, or holds something that is neither text nor an image that can be used.
    """
    found = array_of(value, where)
    if not found:
        raise RequestProblem(
            f"{where} is empty; expected at least one message", code="empty", parameter=where
        )
    if len(found) > MAX_MESSAGES:
        raise RequestProblem(
            f"{where} has {len(found)} messages; expected at most {MAX_MESSAGES}", parameter=where
        )
    messages = [
        _message(object_of(each, f"{where}[{index}]"), f"{where}[{index}]", images)
        for index, each in enumerate(found)
    ]
    return in_order_of_calls(messages, where)


def _message(message: Mapping[str, Any], where: str, images: RequestImages) -> Message:
    role = text_of(message.get("role"), f"{where}.role")
    if role == "tool":
        name = f"{where}.tool_call_id"
        if message.get("tool_call_id") is None:
            raise RequestProblem(
                f"{name} is missing; expected the id of the call that this result is of",
                code="missing_required_parameter",
                parameter=name,
            )
        return {
            "role": "tool",
            "tool_call_id": text_of(message["tool_call_id"], name),
            "content": read_content(message.get("content"), f"{where}.content", images),
            **({"name": message["name"]} if isinstance(message.get("name"), str) else {}),
        }
    if role not in ROLES:
        raise RequestProblem(
            f"{where}.role is {role!r}; expected system, developer, user, assistant or tool",
            code="unknown_role",
            parameter=f"{where}.role",
        )
    content = message.get("content")
    read: dict[str, Any] = {
        "role": ROLES[role],
        "content": read_content(content, f"{where}.content", images if role == "user" else None),
    }
    if role == "assistant":
        if message.get("function_call"):
            raise RequestProblem(
                f"{where}.function_call is the older form of tool_calls, which is not read; send tool_calls, and the "
                "result as a message of the role tool",
                code="unsupported",
                parameter=f"{where}.function_call",
            )
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str):
            read["reasoning_content"] = thought
        calls = message.get("tool_calls")
        if calls:
            read["tool_calls"] = [
                tool_call(object_of(call, f"{where}.tool_calls"), f"{where}.tool_calls[{index}]")
                for index, call in enumerate(array_of(calls, f"{where}.tool_calls"))
            ]
    return read


def tool_call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return one tool call of an assistant's message."""
    function = object_of(call.get("function"), f"{where}.function")
    return written_call(
        text_of(call.get("id") or "", f"{where}.id"),
        text_of(function.get("name"), f"{where}.function.name"),
        function.get("arguments", "{}"),
    )


def written_call(name_of_call: str, function: str, arguments: object) -> dict[str, Any]:
    """Return a tool call as templates read it: arguments as an object, or as text where they are no JSON object."""
    if isinstance(arguments, str):
        try:
            parsed = parse_json(arguments, finite=True)
        except BrokenJson:
            parsed = arguments
        arguments = parsed if isinstance(parsed, dict) else arguments
    return {
        "id": name_of_call,
        "type": "function",
        "function": {"name": function, "arguments": arguments},
    }


def read_content(
    value: object, where: str, images: RequestImages | None
) -> str | list[Mapping[str, Any]]:
    """Return a content: null is an empty text, texts are joined, and images stand between texts as references.

    Args:
        images: takes images in; None: this message may have none.

    Raises:
        RequestProblem: a part is a sound, a file, or an image that cannot be used here.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RequestProblem(
            f"{where}: expected a string or an array of parts, got {kind_of(value)}",
            code="invalid_type",
            parameter=where,
        )
    parts: list[str | Mapping[str, Any]] = []
    for index, each in enumerate(value):
        place = f"{where}[{index}]"
        part = object_of(each, place)
        kind = part.get("type")
        if kind in ("text", "input_text", "output_text"):
            parts.append(text_of(part.get("text"), f"{place}.text"))
        elif kind == "refusal":
            parts.append(text_of(part.get("refusal"), f"{place}.text"))
        elif images is not None and kind in IMAGE_KINDS:
            parts.append(images.part(part, place))
        else:
            raise refuse_kind(kind, place)
    return joined(parts)


def in_order_of_calls(messages: Sequence[Message], parameter: str) -> tuple[Message, ...]:
    """Return the messages with each run of tool results in the order of the calls that they answer.

    Args:
        parameter: field of the request that has them.

    Raises:
        RequestProblem: a result is of a call that no answer before it made.
    """
    if not any(message["role"] == "tool" for message in messages):
        return tuple(messages)
    ordered: list[Message] = []
    place: dict[str, int] = {}
    known: dict[str, None] = {}
    start = 0
    for message in messages:
        if message["role"] == "tool":
            _require_call(message["tool_call_id"], known, parameter)
            ordered.append(message)
            continue
        _sort_run(ordered, start, place)
        ordered.append(message)
        start = len(ordered)
        calls = message.get("tool_calls") or ()
        place = {call["id"]: index for index, call in enumerate(calls)}
        known |= dict.fromkeys(place)
    _sort_run(ordered, start, place)
    return tuple(ordered)


def _require_call(name: str, known: Mapping[str, None], parameter: str) -> None:
    if name not in known:
        listed = ", ".join([*known][-_MAX_LISTED:])
        wanted = f"one of: {listed}" if listed else "one behind an answer with tool_calls"
        raise RequestProblem(
            f"a tool's result is for the call {name[:60]!r}, which no answer before it made; expected {wanted}",
            code="unknown_tool_call",
            parameter=parameter,
        )


def _sort_run(messages: list[Message], start: int, place: Mapping[str, int]) -> None:
    if len(messages) - start > 1:
        last = len(place)
        messages[start:] = sorted(
            messages[start:], key=lambda each: place.get(each["tool_call_id"], last)
        )


def read_tools(value: object, choice: object) -> tuple[Mapping[str, Any], ...]:
    """Return the functions that the policy may call; none with the choice ``none``.

    Raises:
        RequestProblem: a tool is no function, or has no name.
    """
    tools = [
        _function(object_of(each, f"tools[{index}]"), f"tools[{index}]")
        for index, each in enumerate(array_of(value, "tools") if value is not None else ())
    ]
    return () if choice == "none" else tuple(tools)


def _function(tool: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if tool.get("type", "function") != "function":
        raise RequestProblem(
            f"{where} is of type {tool.get('type')!r}; expected function, since nothing here runs other tools",
            code="unsupported_tool",
            parameter=f"{where}.type",
        )
    function = object_of(tool.get("function", tool), f"{where}.function")
    return as_function(
        text_of(function.get("name"), f"{where}.function.name"),
        function.get("description"),
        function.get("parameters"),
    )


def as_function(name: str, description: object, parameters: object) -> Mapping[str, Any]:
    """Return a tool in OpenAI's form for chats."""
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        function["description"] = description
    function["parameters"] = (
        parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    )
    return {"type": "function", "function": function}
