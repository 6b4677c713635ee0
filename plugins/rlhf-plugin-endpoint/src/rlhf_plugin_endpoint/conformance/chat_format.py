"""Tokens and chat format of the kit's policy.

Tokens are those of ``FakeRenderer``, one for each character, and one for each pair of ASCII characters, which encoding
a text never gives. So ``merged("...")`` is an answer that no encoding of its text gives again.

A conversation is ``[role]content|`` for each message, behind ``[tools]names|``, with end-of-sequence behind the content
of an assistant's; so a chat without thoughts, tools and merged pairs is rendered again as it was sampled. As many
templates do, the format leaves thoughts out of the history and writes tool calls in its own spelling of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.contracts import Message
from rlhf_testing.fakes import EOS_ID, FakeRenderer

_FIRST_PAIR = 1_200_000
"""Id of the first pair, above those of all characters."""
_ASCII = 128


def merged(text: str) -> list[int]:
    """Return the tokens of an ASCII text of even length, one for each two characters."""
    return [
        _FIRST_PAIR + _ASCII * ord(text[index]) + ord(text[index + 1])
        for index in range(0, len(text), 2)
    ]


class KitRenderer(FakeRenderer):
    """``contracts.Renderer`` of the kit's format, with its parent's format of answers. Control words in contents are
    ordinary characters."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of the tokens."""
        plain: list[int] = []
        for token in map(int, token_ids):
            if token < _FIRST_PAIR:
                plain.append(token)
            else:
                pair = divmod(token - _FIRST_PAIR, _ASCII)
                plain += self.encode("".join(map(chr, pair)))
        return super().decode(plain, skip_special_tokens=skip_special_tokens)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens of a chat up to the policy's turn."""
        names = ",".join(str(tool.get("function", tool).get("name")) for tool in tools)
        token_ids = self.encode(f"[tools]{names}|") if tools else []
        for message in messages:
            token_ids += self.encode(f"[{message['role']}]{_shown(message)}")
            token_ids += [EOS_ID] if message["role"] == "assistant" else []
            token_ids += self.encode("|")
        return token_ids + self.encode("[assistant]")


def _shown(message: Message) -> str:
    text = message.get("content") or ""
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        arguments = function["arguments"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        shown = json.dumps({"name": function["name"], "arguments": arguments})
        text += f"<tool_call>{shown}</tool_call>"
    return text
