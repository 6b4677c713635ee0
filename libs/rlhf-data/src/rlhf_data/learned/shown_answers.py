"""Whether a rendering shows the assistant's answers as they are: thoughts, content and tool calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rlhf_core.batch.task import Message

from ..chat.template.pieces import THOUGHT_FIELDS, function_of, squeezed
from ..rows import RowProblem
from .learned_text import Span
from .messages import ASSISTANT
from .skeleton import thought_word

CHANGED = "changed by the template"
"""Kind of the problem of a row whose answers the template does not show as they are."""
_TAG = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")


def shows(text: str, turn: Span, message: Message, lead: str, word: str) -> bool:
    """Return whether a rendered turn has all of an answer, up to blanks: thoughts, content and tool calls.

    An answer that begins with a tag such as ``<think>`` may begin in the generation prompt.

    Args:
        lead: text that the template writes before the content, such as a thought: its own, or a stand-in's place.
        word: stand-in of the content.
    """
    for key in THOUGHT_FIELDS:
        if isinstance(thought := message.get(key), str) and thought.strip():
            if thought_word(word) not in lead:
                return False
            lead = lead.replace(thought_word(word), thought)
    body, answer = squeezed(text[slice(*turn)]), squeezed(message.get("content") or "")
    starts = [squeezed(lead) + answer, answer]
    tag = _TAG.match(answer)
    if tag and text[: turn.start].rstrip().endswith(tag.group()):
        starts.append(answer[tag.end() :])
    calls = calls_of(message)
    for start in starts:
        if not calls and body == start:
            return True
        if calls and body.startswith(start):
            return all(name_of(call) in body[len(start) :] for call in calls)
    return False


def holds(shown: str, message: Message) -> bool:
    """Return whether a text has thoughts, content and the names of called functions, each once more, up to blanks."""
    parts = [
        text for key in (*THOUGHT_FIELDS, "content") if isinstance(text := message.get(key), str)
    ]
    rest = squeezed(shown)
    for part in (*map(squeezed, parts), *map(name_of, calls_of(message))):
        if part not in rest:
            return False
        rest = rest.replace(part, "", 1)
    return True


def calls_of(message: Message) -> Sequence[Any]:
    """Return the calls of a message; empty where it has none."""
    return message.get("tool_calls") or ()


def name_of(call: object) -> str:
    """Return the name of the function that a tool call calls."""
    return squeezed(str(function_of(call).get("name", "")))


def changed(messages: Sequence[Message], index: int, shown: str) -> RowProblem:
    """Return the problem of a row of which the template shows ``shown`` in the place of an answer."""
    fix = (
        "This is the last turn: leave out what the template does not write of it, such as thoughts, or set "
        "--model.tokenizer to a copy of the tokenizer with a template that writes it (rlhf template write)"
    )
    if any(message["role"] == ASSISTANT for message in messages[index + 1 :]):
        fix = (
            "Templates of thinking models drop thoughts of earlier turns: learn the last turn only "
            "(--data.learn last), or leave the thoughts out"
        )
    return RowProblem(
        CHANGED,
        f"message {index + 1}: the chat template does not show the assistant's answer as it is, but as {shown!r:.80}. "
        f"{fix}",
    )
