"""Random conversations of words that occur once each, so that every word can be told where it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

BETWEEN = (
    " ",
    "\n",
    "\n\n",
    ' "',
    "' ",
    " <b> ",
    " & ",
    " \\n ",
    " é ",
    " {x} ",
    "\t",
    " 漢字 ",
    ", ",
    " }} ",
)


@dataclass(frozen=True, slots=True)
class RandomConversation:
    """A conversation, and its words."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    words: Mapping[str, int | None]
    """Word that has to be shown -> the index of the answer that it is a part of; None: it is of somebody else."""

    @property
    def answers(self) -> tuple[int, ...]:
        """Indices of the last answer, or of all answers where nothing comes between them but results and questions."""
        found = [index for index, one in enumerate(self.messages) if one["role"] == "assistant"]
        return tuple(found) if len(self.messages) % 2 else tuple(found[-1:])


class _Maker:
    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._numbers = count()
        self.words: dict[str, int | None] = {}

    def word(self, owner: int | None, *, shown: bool = True) -> str:
        word = f"w{next(self._numbers)}q"
        if shown:
            self.words[word] = owner
        return word

    def text(self, owner: int | None, *, shown: bool = True) -> str:
        pieces = [self.word(owner, shown=shown)]
        for _ in range(self._draw.randrange(4)):
            pieces += [self._draw.choice(BETWEEN), self.word(owner, shown=shown)]
        return "".join(pieces) + self._draw.choice(("", "", "\n", " "))

    def content(self, owner: int | None) -> Any:
        if owner is None and self._draw.random() < 0.2:
            return [
                {"type": "text", "text": self.text(owner)}
                for _ in range(self._draw.choice((1, 1, 2)))
            ]
        return self.text(owner)

    def value(self, owner: int) -> Any:
        kind = self._draw.randrange(3)
        if kind == 0:
            return self.text(owner)
        return [self.word(owner), 2] if kind == 1 else {self.word(owner): True}

    def call(self, owner: int, number: int) -> dict[str, Any]:
        arguments = {self.word(owner): self.value(owner) for _ in range(self._draw.randrange(3))}
        return {
            "id": f"call{number:05}",
            "type": "function",
            "function": {"name": self.word(owner), "arguments": arguments},
        }

    def tool(self) -> dict[str, Any]:
        name = self.word(None)
        schema = {"type": "string", "description": self.text(None)}
        function = {
            "name": self.word(None),
            "description": self.text(None),
            "parameters": {"type": "object", "properties": {name: schema}, "required": [name]},
        }
        return {"type": "function", "function": function}


def random_conversation(draw: Random, *, ends_with_answer: bool) -> RandomConversation:
    """Return a conversation of any of the roles, mostly in the order that templates want."""
    make = _Maker(draw)
    messages: list[dict[str, Any]] = []
    tools = [make.tool() for _ in range(draw.choice((0, 0, 0, 1, 2)))]
    for _ in range(draw.choice((0, 0, 1, 1, 1, 2))):
        role = draw.choice(("system",) * 4 + ("developer",))
        messages.append({"role": role, "content": make.content(None)})
    turns = draw.randrange(1, 4)
    for turn in range(turns):
        messages.append({"role": "user", "content": make.content(None)})
        if draw.random() < 0.05:
            messages.append(
                {"role": draw.choice(("user", "system")), "content": make.content(None)}
            )
        if draw.random() < 0.2:
            _add_calls(draw, make, messages)
        if turn < turns - 1 or ends_with_answer:
            messages.append(_answer(draw, make, len(messages)))
    return RandomConversation(messages, tools, make.words)


def _add_calls(draw: Random, make: _Maker, messages: list[dict[str, Any]]) -> None:
    index = len(messages)
    calls = [make.call(index, number) for number in range(draw.choice((1, 1, 2)))]
    content = make.text(index) if draw.random() < 0.3 else ""
    messages.append({"role": "assistant", "content": content, "tool_calls": calls})
    for call in calls:
        result = {"name": call["function"]["name"], "tool_call_id": call["id"]}
        messages.append({"role": "tool", "content": make.text(None), **result})


def _answer(draw: Random, make: _Maker, index: int) -> dict[str, Any]:
    answer = {"role": "assistant", "content": make.text(index)}
    kind = draw.random()
    if kind < 0.15:
        thought = make.text(index, shown=False)
        answer["content"] = f"<think>\n{thought}\n</think>\n\n{answer['content']}"
    elif kind < 0.3:
        answer["reasoning_content"] = make.text(index, shown=False)
    return answer
