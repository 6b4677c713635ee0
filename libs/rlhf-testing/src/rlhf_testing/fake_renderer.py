"""A renderer over characters, for tests of executors, environments and engines. Its chat format is plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rlhf_core.batch.task import Message
from rlhf_core.contracts.environment import ToolCall
from rlhf_core.contracts.executor import Answer, ChatContinuation
from rlhf_core.errors import DataError

PAD_ID = 0
BOS_ID = 1
EOS_ID = 2
_NUM_SPECIAL = 3
_SPECIAL_TEXT = {PAD_ID: "<pad>", BOS_ID: "<bos>", EOS_ID: "<eos>"}

_THOUGHT = re.compile(r"^<think>(.*?)(?:</think>|\Z)", flags=re.DOTALL)
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", flags=re.DOTALL)


class FakeRenderer:
    """Renderer with one token per character: its code point plus 3. Special tokens are 0, 1 and 2.

    A chat is rendered as ``[role]content|`` per message and ``[assistant]`` at its end, behind ``[tools]names|`` if
    there are tools. An answer is parsed as ``<think>thought</think>content<tool_call>{"name": ..., "arguments":
    {...}}</tool_call>``, each part optional. A subclass whose turns follow each other as here may render chats its way.
    """

    eos_id = EOS_ID

    def encode(self, text: str) -> list[int]:
        """Return one token for each character."""
        return [ord(character) + _NUM_SPECIAL for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of the tokens."""
        special = {} if skip_special_tokens else _SPECIAL_TEXT
        return "".join(
            chr(token - _NUM_SPECIAL) if token >= _NUM_SPECIAL else special.get(token, "")
            for token in map(int, token_ids)
        )

    def decode_batch(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """Return the text of each sequence."""
        return [self.decode(one, skip_special_tokens=skip_special_tokens) for one in sequences]

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens of a chat up to the policy's turn."""
        names = ",".join(str(tool.get("function", tool).get("name")) for tool in tools)
        turns = "".join(f"[{message['role']}]{_shown(message)}|" for message in messages)
        return self.encode((f"[tools]{names}|" if tools else "") + turns + "[assistant]")

    def with_template_kwargs(self, kwargs: Mapping[str, Any]) -> Self:
        """Return this renderer; its format has no variables.

        Raises:
            DataError: one is given.
        """
        if kwargs:
            raise DataError(
                f"chat_template_kwargs: this format reads no such variables, got {', '.join(kwargs)}",
                code="template/unread-kwargs",
            )
        return self

    def render_next(
        self,
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Return the tokens between the policy's last turn and its next, end-of-sequence first unless ``ended``."""
        rest = [] if ended else [EOS_ID]
        return [*rest, *self.encode("|"), *self.render(messages)]

    def extend(
        self,
        conversation: Sequence[Message],
        token_ids: Sequence[int],
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        as_template: bool = False,
    ) -> ChatContinuation:
        """Return the tokens so far and those of ``render_next``; this format never forks."""
        following = self.render_next(messages, ended=ended, tools=tools)
        return ChatContinuation(token_ids=(*token_ids, *following))

    def parse(
        self,
        token_ids: Sequence[int],
        *,
        prompt_ids: Sequence[int] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Answer:
        """Return the answer's thought, content and tool calls; broken JSON is malformed."""
        text = self.decode(token_ids)
        thought = _THOUGHT.match(text)
        rest = text[thought.end() :] if thought else text
        calls: list[ToolCall] = []
        malformed: list[str] = []
        for found in _CALL.finditer(rest):
            try:
                call = json.loads(found[1])
                arguments = json.dumps(call["arguments"])
                calls.append(
                    ToolCall(name=call["name"], arguments=arguments, id=f"call_{len(calls)}")
                )
            except (ValueError, KeyError, TypeError) as error:
                malformed.append(
                    f"expected a JSON object with name and arguments, got {found[1]!r}: {error}"
                )
        is_plain = thought is None and not calls and not malformed
        return Answer(
            text=text,
            reasoning=thought[1] if thought else "",
            content=None if is_plain else _CALL.sub("", rest),
            tool_calls=tuple(calls),
            malformed=tuple(malformed),
            reasoning_open=thought is not None and "</think>" not in text,
        )


def _shown(message: Message) -> str:
    calls = (call.get("function", call) for call in message.get("tool_calls") or ())
    return (message.get("content") or "") + "".join(
        f"<tool_call>{json.dumps({key: call[key] for key in ('name', 'arguments')})}</tool_call>"
        for call in calls
    )
