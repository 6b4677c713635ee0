"""Texts of a conversation that its rendering has to show, and the spellings in which templates write them."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rlhf_core.batch.task import Message
from rlhf_core.outside.json_reader import BrokenJson, parse_json

from ..parsing.families import THOUGHTS

Tools = Sequence[Mapping[str, Any]]

THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields in which data sets put the thoughts of an answer."""

SAID_FIELDS = (
    "name",
    "function_call",
    "refusal",
    "audio",
    "audios",
    "image",
    "images",
    "video",
    "videos",
)
"""Further fields that say something: those of OpenAI's chat messages, and media beside a content (Ollama, ms-swift)."""

WEIGHT = "weight"
LEARNED_FIELDS = (
    WEIGHT,
    *("train", "training", "train_on_turn", "trainable", "loss", "loss_mask", "loss_scale"),
)
"""Fields that say whether a message is learned, as OpenAI, axolotl, Tinker, ms-swift and others call them."""
PARTS_LEARNED = "train_detail"
"""Axolotl's field that says which characters of a message are learned."""

_OTHER_FIELDS = frozenset(
    {"role", "content", "tool_calls", "tool_call_id", "id"}
    | {*THOUGHT_FIELDS, *SAID_FIELDS, *LEARNED_FIELDS, PARTS_LEARNED}
)


class SaidText(NamedTuple):
    """A text that has to be shown."""

    place: int
    """Index of its message, or of its tool."""
    text: str
    call: int | None = None
    """Index of the call of the message that it belongs to; None: it is of the content, or of a tool."""
    is_tool: bool = False
    field: str | None = None
    """Field of the message that has it, one of ``SAID_FIELDS``; None: it is of the content, a call or a tool."""
    is_moved: bool = False
    """Whether it is shown, but before the messages that it follows."""


def pieces_of(messages: Sequence[Message], tools: Tools) -> Iterator[SaidText]:
    """Yield all texts that have to be shown, none blank: contents, calls with their arguments, and tools.

    Of an answer only what is outside of its thoughts, since templates leave thoughts of earlier turns out; fields such
    as ``reasoning_content`` are thoughts. Of a tool its name, its description, and names and descriptions of its
    parameters; of arguments all names and values but null. Of the fields that say something all names and values.
    """
    for index, message in enumerate(messages):
        for text in texts_of(message):
            if text.strip():
                yield SaidText(index, text)
        for number, call in enumerate(message.get("tool_calls") or ()):
            for text in _texts_of_call(call):
                if text.strip():
                    yield SaidText(index, text, number)
        for field in said_fields(message):
            for text in _leaves(message[field]):
                if text.strip():
                    yield SaidText(index, text, field=field)
    for index, tool in enumerate(tools):
        for text in _texts_of_tool(tool):
            if text.strip():
                yield SaidText(index, text, is_tool=True)


def texts_of(message: Message) -> list[str]:
    """Return the texts of a message's content; of the assistant's those outside of thoughts."""
    content = message.get("content")
    if content is None:
        return []
    parts = [content] if isinstance(content, str) or not isinstance(content, Sequence) else content
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    found = [text if isinstance(text, str) else str(text) for text in texts if text is not None]
    if message.get("role") != "assistant":
        return found
    return [text for one in found for text in without_thoughts(one)]


def said_fields(message: Message) -> list[str]:
    """Return the fields of a message, beside content, calls and thoughts, that have to be shown.

    The ``name`` of a tool's result is that of the call before it.
    """
    is_result = message.get("role") == "tool"
    return [
        field for field in SAID_FIELDS if message.get(field) and not (field == "name" and is_result)
    ]


def unknown_fields(message: Message) -> Iterator[tuple[str, SaidText]]:
    """Yield each unusual field of a message, with the first text in it."""
    for field in message.keys() - _OTHER_FIELDS:
        text = next((text for text in _leaves(message[field]) if text.strip()), None)
        if text is not None:
            yield field, SaidText(0, text, field=field)


def without_thoughts(text: str) -> list[str]:
    """Return the texts around the thoughts of an answer; a thought may begin in the prompt, before the text."""
    for begin, end in THOUGHTS:
        if end not in text:
            continue
        *thoughtful, rest = text.split(end)
        outside = [one.partition(begin)[0] if begin in one else "" for one in thoughtful]
        return [*outside, rest]
    return [text]


def function_of(call: Any) -> Mapping[str, Any]:
    """Return the function of a call or of a tool, which may stand in an object of its own; empty if there is none."""
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    return function if isinstance(function, Mapping) else {}


def _texts_of_call(call: Any) -> Iterator[str]:
    function = function_of(call)
    yield str(function.get("name") or "")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except BrokenJson:
            yield arguments
            return
    yield from _leaves(arguments)


def _texts_of_tool(tool: Mapping[str, Any]) -> Iterator[str]:
    function = function_of(tool)
    if not function.get("name"):
        yield from _leaves(tool)
        return
    yield str(function["name"])
    yield str(function.get("description") or "")
    parameters = function.get("parameters") or function.get("input_schema")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        return
    for name, schema in properties.items():
        yield str(name)
        if isinstance(schema, Mapping) and isinstance(schema.get("description"), str):
            yield schema["description"]


def _leaves(value: Any) -> Iterator[str]:
    """Yield names and values of a nested value; numbers and truth values as JSON has them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield str(key)
            yield from _leaves(one)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for one in value:
            yield from _leaves(one)
    elif value is not None:
        yield json.dumps(value, default=repr)


class ShownText:
    """Text of a template, in which pieces are looked for."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._squeezed: str | None = None

    def shows(self, piece: str) -> bool:
        """Return whether the text has a piece, in any of the spellings of templates.

        Blanks count nowhere. A piece may stand as it is, as in JSON (with or without ASCII escapes, or those of
        ``<``, ``>``, ``&`` and ``'``), as JSON in JSON, as Python spells it, or with the entities of HTML; numbers and
        truth values as Python has them, too.
        """
        if piece.strip() in self._text:
            return True
        if self._squeezed is None:
            self._squeezed = squeezed(self._text)
        return any(squeezed(one) in self._squeezed for one in _spellings(piece))


def squeezed(text: str) -> str:
    """Return a text without its blanks, for comparisons up to blanks."""
    return "".join(text.split())


_PYTHON = {"true": "True", "false": "False"}
_UNSAFE = {ord(char): f"\\u{ord(char):04x}" for char in "<>&'"}


def _spellings(text: str) -> Iterator[str]:
    yield text
    yield _PYTHON.get(text, text)
    for spell in _SPELLINGS:
        yield spell(text)
    for first in _SPELLINGS[:2]:
        for second in _SPELLINGS[:2]:
            yield second(first(text))


def _between_quotes(text: str) -> str:
    """Return a text as templates write it that escape by hand, and leave other characters as they are (LFM2)."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return escaped.replace("\n", "\\n").replace("\r", "\\r")


_SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text)[1:-1].translate(_UNSAFE),
    lambda text: repr(text)[1:-1],
    _between_quotes,
    html.escape,
)
