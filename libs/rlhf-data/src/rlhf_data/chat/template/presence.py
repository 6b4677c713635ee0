"""Search for everything that a conversation says in its rendering, so that nothing is lost without a word.

A template may have no place for a system message, or for calls of tools. Two things are looked for:

- the texts themselves, in the rendering (``pieces``). A short text may be found where the template, or another message,
  has the same letters; so also
- stand-ins, which no other text has, in the rendering of a conversation of the same shape. Rows of one shape (roles,
  kinds of contents, number of calls and tools) share its result, so that it costs a rendering for each shape.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlhf_core.batch.task import Message
from rlhf_core.media.parts import is_image, is_seen

from ...source import is_list
from .pieces import (
    SAID_FIELDS,
    THOUGHT_FIELDS,
    SaidText,
    ShownText,
    Tools,
    function_of,
    pieces_of,
    said_fields,
    texts_of,
    unknown_fields,
)
from .problem import HIDDEN, TemplateProblem, shortened

_MAX_SHAPES = 10_000
"""Shapes whose results are kept."""
_MARK = "Zx7Qv"
"""Start of the stand-ins: no template contains or changes it."""
_SYSTEM = ("system", "developer")
_OWN_KEYS = ("role", "content", "tool_calls", "tool_call_id", "id", *THOUGHT_FIELDS, *SAID_FIELDS)

log = logging.getLogger(__name__)


class Show(Protocol):
    """Function from messages and tools to their rendering; raises TemplateProblem."""

    def __call__(self, messages: Sequence[Message], *, reply: bool, tools: Tools) -> str: ...


class Presence:
    """Finder of what a chat template leaves out.

    A field of a message that is none of the usual ones (``timestamp``, ``country``) may be left out; one warning names
    it.

    Args:
        show: renders a conversation.
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self._shapes: dict[tuple[Any, ...], SaidText | None] = {}
        self._left_out: set[str] = set()

    def check(
        self, messages: Sequence[Message], tools: Tools, text: str, *, reply: bool, first: int = 0
    ) -> None:
        """Refuse a rendering that leaves out a text, a call or a tool; ``pieces`` has the rules.

        Args:
            text: rendering of the messages.
            first: index of the first message that is looked for; those before it were looked for earlier.

        Raises:
            TemplateProblem: it does; the first missing piece is named with its message and role, and the fix.
        """
        missing = _missing(messages, tools, text, first)
        if missing is None:
            of_tools = tuple("function" in tool for tool in tools)
            shape = (reply, first, of_tools, *map(_shape_of, messages))
            if shape not in self._shapes:
                if len(self._shapes) >= _MAX_SHAPES:
                    self._shapes.clear()
                self._shapes[shape] = self._hidden(messages, tools, reply, first)
            missing = self._shapes[shape]
        if missing is not None:
            raise _problem(missing, messages, tools, first)
        self._warn(messages[first:], text)

    def _warn(self, messages: Sequence[Message], text: str) -> None:
        """Say once of each unknown field that the template leaves it out."""
        for message in messages:
            for field, piece in unknown_fields(message):
                if field not in self._left_out and not ShownText(text).shows(piece.text):
                    self._left_out.add(field)
                    log.warning(
                        "messages have the field %s, which the chat template does not show: the model reads nothing of "
                        "it, such as %s",
                        shortened(repr(field), 40),
                        shortened(repr(piece.text), 80),
                    )

    def _hidden(
        self, messages: Sequence[Message], tools: Tools, reply: bool, first: int
    ) -> SaidText | None:
        """Return the first stand-in that the template leaves out of a conversation of the same shape."""
        stood = [_stand_in(message, index) for index, message in enumerate(messages)]
        some_tools = [_tool(tool, index) for index, tool in enumerate(tools)]
        try:
            text = self._show(stood, reply=reply, tools=some_tools)
        except TemplateProblem:
            return None  # the template wants contents of its own kind, such as JSON; the texts were found
        return _missing(stood, some_tools, text, first) or _moved(stood, text, first)


def _moved(stood: Sequence[Message], text: str, first: int) -> SaidText | None:
    """Return the first later system message that a template shows before everything that was said before it."""
    words = {index: next(iter(texts_of(message)), "") for index, message in enumerate(stood)}
    said = [(index, text.find(word)) for index, word in words.items() if word]
    turns = [place for index, place in said if stood[index].get("role") not in _SYSTEM]
    for index, place in said:
        is_later = any(at < index and stood[at].get("role") not in _SYSTEM for at, _ in said)
        if index >= first and stood[index].get("role") in _SYSTEM and is_later and place < turns[0]:
            return SaidText(index, words[index], is_moved=True)
    return None


def _missing(messages: Sequence[Message], tools: Tools, text: str, first: int) -> SaidText | None:
    """Return the first piece of the messages from ``first`` on, and of the tools, that a text does not show."""
    rendering = ShownText(text)
    for piece in pieces_of(messages, tools):
        if (piece.is_tool or piece.place >= first) and not rendering.shows(piece.text):
            return piece
    return None


def _shape_of(message: Message) -> tuple[Any, ...]:
    """Return what a template may look at in a message beside its texts."""
    others = tuple((key, repr(message[key])[:80]) for key in message if key not in _OWN_KEYS)
    fields = tuple((field, type(message[field])) for field in said_fields(message))
    thoughts = tuple(bool(message.get(key)) for key in THOUGHT_FIELDS)
    calls = tuple(_shape_of_call(call) for call in message.get("tool_calls") or ())
    return (message.get("role"), _shape_of_content(message), calls, thoughts, fields, others)


def _shape_of_content(message: Message) -> Any:
    content = message.get("content")
    if is_list(content):
        return tuple(
            ("image" if is_image(part) else "video") if is_seen(part) else "text"
            for part in content
        )
    return None if content is None else any(text.strip() for text in texts_of(message))


def _shape_of_call(call: Any) -> Any:
    function = function_of(call)
    return (
        "function" in call if isinstance(call, Mapping) else None,
        type(function.get("arguments")),
    )


def _stand_in(message: Message, index: int) -> Message:
    """Return a message with stand-ins for its texts, its calls, and its thoughts."""
    made = dict(message)
    content = message.get("content")
    if isinstance(content, str):
        is_said = any(text.strip() for text in texts_of(message))
        made["content"] = f"{_MARK}{index}c" if is_said else ""
    elif isinstance(content, Sequence):
        made["content"] = [
            part if is_seen(part) else {"type": "text", "text": f"{_MARK}{index}p{number}c"}
            for number, part in enumerate(content)
        ]
    for key in THOUGHT_FIELDS:
        if isinstance(message.get(key), str) and message[key]:
            made[key] = f"{_MARK}{index}t"
    for field in said_fields(message):
        if isinstance(message[field], str):
            made[field] = f"{_MARK}{index}{field}"
    if message.get("tool_calls"):
        made["tool_calls"] = [
            _call(call, f"{_MARK}{index}c{number}")
            for number, call in enumerate(message["tool_calls"])
        ]
    return made


def _call(call: Any, word: str) -> Any:
    function = function_of(call)
    if not function:
        return call
    arguments: Any = {f"{word}k": f"{word}v"}
    if isinstance(function.get("arguments"), str):
        arguments = f'{{"{word}k": "{word}v"}}'
    elif not isinstance(function.get("arguments"), Mapping):
        arguments = function.get("arguments")
    made = {**function, "name": f"{word}n", "arguments": arguments}
    return {**call, "function": made} if "function" in call else made


def _tool(tool: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    word = f"{_MARK}t{index}"
    schema = {"type": "string", "description": f"{word}h"}
    made = {
        "name": f"{word}n",
        "description": f"{word}d",
        "parameters": {
            "type": "object",
            "properties": {f"{word}k": schema},
            "required": [f"{word}k"],
        },
    }
    return {"type": "function", "function": made} if "function" in tool else made


def _problem(
    missing: SaidText, messages: Sequence[Message], tools: Tools, first: int
) -> TemplateProblem:
    if missing.is_tool:
        tool = tools[missing.place]
        name = shortened(function_of(tool).get("name") or "without a name", 80)
        return TemplateProblem(
            f"tool {missing.place + 1} ({name}): the chat template does not show {_shown(missing, 'the tool')}. Leave "
            "the tools out, describe them in a message, or use a model whose template shows tools",
            HIDDEN,
        )
    message = messages[missing.place]
    role = str(message.get("role"))
    where = f"message {missing.place - first + 1} ({shortened(role, 40)})"
    if missing.is_moved:
        return TemplateProblem(
            f"{where}: the chat template shows it before the messages that it follows, which would be read as said "
            "under it. Merge it into the next message of the user, or use a model whose template shows it in its place",
            HIDDEN,
        )
    if missing.call is not None:
        function = function_of(message["tool_calls"][missing.call])
        what = _shown(missing, f"the call of {shortened(function.get('name'), 80)}")
        fix = "Write it into the content as the model writes calls, or use a model whose template shows calls"
    elif missing.field is not None:
        what = _shown(missing, f"its field {missing.field!r}")
        fix = _FIELD_FIXES.get(missing.field, _MEDIA_FIX)
    else:
        what = _shown(
            missing,
            "its text" if not missing.text.startswith(_MARK) else "messages of this role there",
        )
        fix = _FIXES.get(role, _ANY_FIX)
    return TemplateProblem(f"{where}: the chat template does not show {what}. {fix}", HIDDEN)


def _shown(missing: SaidText, what: str) -> str:
    """Return what is missing: the text, or where a stand-in is missing the whole thing."""
    if missing.text.startswith(_MARK):
        return what
    return f"{what}: {shortened(repr(missing.text), 80)} is missing"


_SYSTEM_FIX = (
    "Merge it into the first message of the user (it may be --data.system_prompt), or use a model whose template has a "
    "place for it"
)
_FIXES = {
    "system": _SYSTEM_FIX,
    "developer": "Give it the role system, or merge it into the first message of the user",
    "tool": "Use a model whose template shows results of tools, or give the result as a message of the user",
}
_FIELD_FIXES = {
    "name": "Write it into the content, or leave the field out",
    "refusal": "Write it into the content",
    "function_call": "Write it as tool_calls, and its result as a message of the role tool",
}
_MEDIA_FIX = (
    'Give images as parts of the content, {"type": "image", ...}, or in a column of the row, with a model that '
    "reads them; leave out what a model cannot read"
)
_ANY_FIX = "Expected a template that shows every message as it is; change the message, or use another model's template"
