"""OpenAI's ``/v1/responses``: what a client asks, as a ``ModelRequest``.

A response is kept under its id with the conversation that it ends, so that ``previous_response_id`` goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.contracts import Message

from .chat_messages import ROLES, in_order_of_calls, read_content, read_tools, written_call
from .fields import array_of, integer, object_of, objects_of, refuse, role_of, text_of
from .model_request import ModelRequest
from .problems import RequestProblem
from .request_fields import template_kwargs
from .request_images import RequestImages
from .sampling import DECIDED

FIELDS = frozenset(
    {"input", "instructions", "previous_response_id", "tools", "tool_choice", "max_output_tokens"}
    | {"text", "reasoning", "include", "background", "conversation", "prompt", "top_logprobs"}
    | {"stream_options", *DECIDED}
)
"""Fields that this route reads, beside those that all do."""
_INCLUDED = ("reasoning.encrypted_content",)
"""Further parts of a reply that a client may ask for: thoughts are in it anyway, in words."""


def read_response_request(
    body: Mapping[str, Any], earlier: Mapping[str, Sequence[Message]], images: RequestImages
) -> ModelRequest:
    """Return what a body asks for.

    Args:
        earlier: the conversation behind each response of the episode, by its id, instructions excepted.

    Raises:
        RequestProblem: a field is missing or wrong, or names a response that is not this episode's.
    """
    refuse(
        body, ("background", "conversation", "prompt"), "is not supported; send the input itself"
    )
    if body.get("top_logprobs"):
        raise RequestProblem(
            "top_logprobs: expected 0, since a response shows no log-probs; ask /v1/chat/completions for them",
            code="unsupported_logprobs",
            parameter="top_logprobs",
        )
    for part in array_of(body["include"], "include") if body.get("include") else ():
        if part not in _INCLUDED:
            raise RequestProblem(
                f"include has {str(part)[:60]!r}, which no response has here; expected {', '.join(_INCLUDED)}",
                code="unsupported",
                parameter="include",
            )
    messages: list[Message] = []
    if body.get("instructions"):
        text = text_of(body["instructions"], "instructions")
        messages.append({"role": "system", "content": text})
    messages += _earlier(body.get("previous_response_id"), earlier)
    messages += _input(body.get("input"), images)
    return ModelRequest(
        messages=in_order_of_calls(messages, "input"),
        tools=read_tools(body),
        max_new_tokens=integer(body, "max_output_tokens", low=1),
        template_kwargs=template_kwargs(body),
    )


def _earlier(name: object, earlier: Mapping[str, Sequence[Message]]) -> Sequence[Message]:
    if name is None:
        return ()
    if not isinstance(name, str) or name not in earlier:
        raise RequestProblem(
            f"previous_response_id {name!r} is no response of this episode",
            status=404,
            code="previous_response_not_found",
            parameter="previous_response_id",
        )
    return earlier[name]


def _input(value: object, images: RequestImages) -> list[Message]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    messages: list[Message] = []
    found = objects_of(value, "input")
    if not found:
        raise RequestProblem("input is empty", code="empty", parameter="input")
    for place, each in found:
        _add_item(messages, each, place, images)
    return messages


def _add_item(
    messages: list[Message], item: Mapping[str, Any], where: str, images: RequestImages
) -> None:
    """Append an item to the conversation. What the assistant thought, said and called in one answer is one message."""
    kind = item.get("type") or "message"
    if kind == "message":
        role = role_of(item, where, ROLES)
        content = read_content(
            item.get("content"), f"{where}.content", images if role == "user" else None
        )
        if role != "assistant":
            messages.append({"role": ROLES[role], "content": content})
            return
        own = _own_message(messages, takes_content=True)
        own["content"] += content
    elif kind == "function_call":
        own = _own_message(messages)
        call = written_call(
            text_of(item.get("call_id"), f"{where}.call_id"),
            text_of(item.get("name"), f"{where}.name"),
            item.get("arguments", "{}"),
        )
        own.setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        messages.append(
            {
                "role": "tool",
                "tool_call_id": text_of(item.get("call_id"), f"{where}.call_id"),
                "content": read_content(item.get("output"), f"{where}.output", images),
            }
        )
    elif kind == "reasoning":
        thought = _thought(item, where)
        if thought:
            own = _own_message(messages, is_new=True)
            own["reasoning_content"] = thought
    else:
        raise RequestProblem(
            f"{where} is of type {kind!r}; expected message, function_call, function_call_output or reasoning",
            code="unsupported_content",
            parameter=f"{where}.type",
        )


def _own_message(
    messages: list[Message], *, takes_content: bool = False, is_new: bool = False
) -> dict[str, Any]:
    """Return the assistant's message at the end, or append one. Text never follows tool calls or other text."""
    last = messages[-1] if messages else None
    if isinstance(last, dict) and last["role"] == "assistant" and not is_new:
        is_started = bool(last["content"]) or bool(last.get("tool_calls"))
        if not (takes_content and is_started):
            return last
    own: dict[str, Any] = {"role": "assistant", "content": ""}
    messages.append(own)
    return own


def _thought(item: Mapping[str, Any], where: str) -> str:
    """Return the text of a reasoning item: its content, or its summary where it has none."""
    texts = []
    for part in item.get("content") or item.get("summary") or ():
        texts.append(text_of(object_of(part, where).get("text"), f"{where}.text"))
    return "".join(texts)
