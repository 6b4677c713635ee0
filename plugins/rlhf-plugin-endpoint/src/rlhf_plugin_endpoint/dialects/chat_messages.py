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

from .fields import object_of, objects_of, role_of, text_of, wrong
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
    found = objects_of(value, where)
    if not found:
        raise RequestProblem(
            f"{where} is empty; expected at least one message", code="empty", parameter=where
        )
    if len(found) > MAX_MESSAGES:
        raise RequestProblem(
            f"{where} has {len(found)} messages; expected at most {MAX_MESSAGES}", parameter=where
        )
    return in_order_of_calls([_message(each, place, images) for place, each in found], where)


def _message(message: Mapping[str, Any], where: str, images: RequestImages) -> Message:
    role = role_of(message, where, (*ROLES, "tool"))
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
            found = objects_of(calls, f"{where}.tool_calls")
            read["tool_calls"] = [tool_call(call, place) for place, call in found]
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
        raise wrong(where, "a string or an array of parts", value)
    parts: list[str | Mapping[str, Any]] = []
    for place, part in objects_of(value, where):
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


def read_tools(
    body: Mapping[str, Any], kind: str = "function", schema: str = "parameters"
) -> tuple[Mapping[str, Any], ...]:
    """Return the functions that the policy may call, in OpenAI's form for chats; none with the choice ``none``.

    Args:
        kind: the dialect's type of a tool that the client runs.
        schema: field of a tool with the schema of its arguments.

    Raises:
        RequestProblem: a tool is of another type, or has no name.
    """
    tools = objects_of(body["tools"] if body.get("tools") is not None else [], "tools")
    read = tuple(_function(tool, place, kind, schema) for place, tool in tools)
    choice = body.get("tool_choice")
    is_off = (choice.get("type") if isinstance(choice, dict) else choice) == "none"
    return () if is_off else read


def _function(tool: Mapping[str, Any], where: str, kind: str, schema: str) -> Mapping[str, Any]:
    if tool.get("type", kind) != kind:
        raise RequestProblem(
            f"{where} is of type {tool['type']!r}; expected {kind}, since nothing here runs other tools",
            code="unsupported_tool",
            parameter=f"{where}.type",
        )
    where += ".function" if "function" in tool else ""
    described = object_of(tool.get("function", tool), where)
    function: dict[str, Any] = {"name": text_of(described.get("name"), f"{where}.name")}
    if isinstance(described.get("description"), str):
        function["description"] = described["description"]
    parameters = described.get(schema)
    function["parameters"] = (
        parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    )
    return {"type": "function", "function": function}
