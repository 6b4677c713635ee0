"""Answers of an OpenAI-compatible server as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_core.contracts import Message, Stop, ToolCall
from rlhf_core.outside.json_reader import parse_object

SHOWN = 200
"""Characters of a body that messages repeat."""


class UnreadableAnswer(ValueError):
    """An answer that is not of the protocol; the text describes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """The model's answer to one request."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    stop: Stop
    tokens_in: int | None
    """Tokens that the model read, as the server counts; None where it does not say."""
    tokens_out: int | None

    def message(self) -> Message:
        """Return the answer as the assistant's message of a conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message


def read_answer(body: bytes) -> ChatAnswer:
    """Return the answer in a body of ``/chat/completions``.

    Raises:
        UnreadableAnswer: it is no JSON, or has no choice with a message.
    """
    try:
        values = parse_object(body)
        choice = values["choices"][0]
        message = choice["message"]
        content, calls = message.get("content"), message.get("tool_calls") or ()
        usage = values.get("usage") or {}
        answer = ChatAnswer(
            text=content or "",
            reasoning=message.get("reasoning_content") or message.get("reasoning") or "",
            tool_calls=tuple(map(_tool_call, calls)),
            stop=Stop.LENGTH if choice.get("finish_reason") == "length" else Stop.EOS,
            tokens_in=_count(usage.get("prompt_tokens")),
            tokens_out=_count(usage.get("completion_tokens")),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise UnreadableAnswer(
            f"expected an object with choices[0].message; got {beginning(body)}"
        ) from error
    if not isinstance(answer.text, str) or not isinstance(answer.reasoning, str):
        raise UnreadableAnswer(f"expected text as the message's content; got {beginning(body)}")
    return answer


def beginning(body: bytes) -> str:
    """Return the first characters of a body, on one line."""
    text = " ".join(body[: 4 * SHOWN].decode(errors="replace").split())
    return (text if len(text) <= SHOWN else text[:SHOWN] + "...") or "an empty body"


def _tool_call(values: Mapping[str, Any]) -> ToolCall:
    function = values["function"]
    return ToolCall(
        name=str(function["name"]),
        arguments=str(function.get("arguments") or ""),
        id=str(values.get("id") or ""),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
