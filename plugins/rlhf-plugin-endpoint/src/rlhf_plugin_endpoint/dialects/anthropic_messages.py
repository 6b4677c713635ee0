"""Anthropic's ``/v1/messages``: what a client asks, as a ``ModelRequest``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.contracts import Message
from rlhf_core.outside.json_reader import BrokenJson, parse_json

from .chat_messages import in_order_of_calls, read_tools, written_call
from .fields import integer, object_of, objects_of, role_of, strings, text_of, wrong
from .model_request import ModelRequest
from .openai_chat import MAX_STOPS
from .problems import RequestProblem
from .request_fields import template_kwargs
from .request_images import RequestImages, joined, refuse_kind
from .sampling import DECIDED

FIELDS = frozenset(
    {"messages", "system", "max_tokens", "stop_sequences", "tools", "tool_choice", *DECIDED}
)
"""Fields that this route reads, beside those that all do."""


def read_anthropic(
    body: Mapping[str, Any], images: RequestImages, *, needs_limit: bool = True
) -> ModelRequest:
    """Return what a body asks for.

    Args:
        needs_limit: ``max_tokens`` is mandatory, as it is where an answer is asked for.

    Raises:
        RequestProblem: a field is missing or wrong, or a block is neither text nor an image that can be used.
    """
    limit = integer(body, "max_tokens", low=1)
    if limit is None and needs_limit:
        raise RequestProblem("max_tokens: Field required", parameter="max_tokens")
    messages: list[Message] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _text(body["system"], "system")})
    found = objects_of(body.get("messages"), "messages")
    if not found:
        raise RequestProblem("messages is empty; expected at least one", parameter="messages")
    for place, each in found:
        messages += _messages(each, place, images)
    return ModelRequest(
        messages=in_order_of_calls(messages, "messages"),
        tools=read_tools(body, kind="custom", schema="input_schema"),
        max_new_tokens=limit,
        stop=strings(body, "stop_sequences", most=MAX_STOPS),
        template_kwargs=template_kwargs(body),
    )


def _messages(message: Mapping[str, Any], where: str, images: RequestImages) -> list[Message]:
    """Return the messages that one of Anthropic's is: tool results are messages of their own, before what is said."""
    role = role_of(message, where, ("system", "user", "assistant"))
    content = message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = objects_of(content, f"{where}.content")
    if role == "assistant":
        return [_assistant(blocks)]
    results: list[Message] = []
    parts: list[str | Mapping[str, Any]] = []
    for place, block in blocks:
        if block.get("type") == "tool_result":
            results.append(_result(block, place, images))
        else:
            parts.append(_block(block, place, images if role == "user" else None))
    said: list[Message] = [{"role": role, "content": joined(parts)}] if parts else []
    return [*results, *said] or [{"role": role, "content": ""}]


def _assistant(blocks: Sequence[tuple[str, Mapping[str, Any]]]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for place, block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(text_of(block.get("thinking"), f"{place}.thinking"))
        elif kind == "tool_use":
            calls.append(
                written_call(
                    text_of(block.get("id"), f"{place}.id"),
                    text_of(block.get("name"), f"{place}.name"),
                    dict(object_of(block.get("input", {}), f"{place}.input")),
                )
            )
        else:
            texts.append(_block_text(block, place))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _result(block: Mapping[str, Any], where: str, images: RequestImages) -> Message:
    content = block.get("content")
    if isinstance(content, list):
        blocks = objects_of(content, f"{where}.content")
        content = joined([_block(each, place, images) for place, each in blocks])
    else:
        content = "" if content is None else _text(content, f"{where}.content")
    return {
        "role": "tool",
        "tool_call_id": text_of(block.get("tool_use_id"), f"{where}.tool_use_id"),
        "content": content,
    }


def _text(value: object, where: str) -> str:
    """Return a text, or an array of text blocks as one."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong(where, "a string or an array of blocks", value)
    return "".join(_block_text(each, place) for place, each in objects_of(value, where))


def _block(
    block: Mapping[str, Any], where: str, images: RequestImages | None
) -> str | Mapping[str, Any]:
    if images is not None and block.get("type") == "image":
        return images.part(block, where)
    return _block_text(block, where)


def _block_text(block: Mapping[str, Any], where: str) -> str:
    if block.get("type") != "text":
        raise refuse_kind(block.get("type"), where)
    return text_of(block.get("text"), f"{where}.text")


def call_input(arguments: str) -> dict[str, Any]:
    """Return a tool call's arguments as the object that Anthropic's form has; what is none stands under ``text``."""
    try:
        value = parse_json(arguments, finite=True)
    except BrokenJson:
        return {"text": arguments}
    return value if isinstance(value, dict) else {"value": value}
