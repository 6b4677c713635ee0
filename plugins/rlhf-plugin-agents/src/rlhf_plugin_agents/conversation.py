"""The chat of an episode as messages, beside its tokens: by it a template decides how it shows what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.contracts import Answer, Message, Observation, Task, ToolCall
from rlhf_core.outside.json_reader import BrokenJson, parse_json


class Conversation:
    """Messages of an episode, its tools, and the policy's answers. Known as long as all observations are messages."""

    def __init__(self, task: Task, first: Observation) -> None:
        self.tools: Sequence[Mapping[str, Any]] = first.tools
        self.messages: list[Message] = []
        """All messages so far; empty: the episode is no chat, or not one any more."""
        if first.messages:
            self.messages += first.messages
        elif not first.text and first.token_ids is None:
            self.messages += task.messages
        self.was_chat = bool(self.messages)
        """The episode began as a chat."""

    def answered(self, answer: Answer) -> None:
        """Add the policy's answer."""
        if not self.messages:
            return
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text if answer.content is None else answer.content,
        }
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = [_call(call) for call in answer.tool_calls]
        self.messages.append(message)

    def observed(self, observation: Observation) -> None:
        """Add what the environment answered; text and tokens end the chat, for no template knows them."""
        if self.messages and observation.messages:
            self.messages += observation.messages
        else:
            self.messages = []


def _call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = parse_json(call.arguments)
    except BrokenJson:
        arguments = call.arguments
    function = {"name": call.name, "arguments": arguments}
    return {"type": "function", "id": call.id, "function": function}
