"""Columns of a row as texts, conversations, answers and tools, each checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.batch.task import Message
from rlhf_core.media.parts import is_seen
from rlhf_core.outside.json_reader import parse_json

from ..advice import near_answer, way_to_text
from ..forms.chats import ROLES as OTHERS
from ..rows import RowProblem, check_not_printed, check_text, no_column, read_messages
from ..source import Row, hint_of_printed, is_list

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of messages; a data set with others (``human``, ``gpt``) has to be rewritten."""

ASSISTANT = "assistant"
TOOL = "tool"


def value_of(row: Row, key: str, option: str) -> Any:
    """Return the value of a column.

    Args:
        option: option that names the column, for the message.

    Raises:
        RowProblem: the row has no such column, or nothing in it.
    """
    if key not in row:
        raise no_column(
            row, key, f"Set --data.{option}{near_answer(row, option)}{hint_of_printed(row)}"
        )
    if row[key] is None:
        raise RowProblem("empty", f"column {key!r} is null")
    return row[key]


def text_of(row: Row, key: str, option: str) -> str:
    """Return the text of a column.

    Raises:
        RowProblem: the column is missing, or has no text that can be used.
    """
    text = value_of(row, key, option)
    if not isinstance(text, str):
        raise RowProblem(
            "wrong type",
            f"column {key!r}: expected text, got {type(text).__name__}{way_to_text(text)}",
        )
    check_text(text, f"column {key!r}")
    return text


def answer_of(row: Row, key: str, option: str) -> str:
    """Return the text of a column with an answer, which a policy learns to write.

    Raises:
        RowProblem: as from ``text_of``, or the text is messages as Python prints them.
    """
    text = text_of(row, key, option)
    check_not_printed(text, f"column {key!r}")
    return text


def conversation_of(value: object, key: str, *, parts: bool = False) -> tuple[Message, ...]:
    """Return the messages of a column: roles that are known, and contents that are text.

    Args:
        parts: contents may have images; see ``check_chat``.

    Raises:
        RowProblem: the value is not a list of such messages.
    """
    if not is_list(value):
        raise RowProblem(
            "wrong type",
            f"column {key!r}: expected a list of chat messages, got {type(value).__name__}"
            f"{hint_of_printed({key: value})}",
        )
    messages = tuple(map(_with_plain_answer, read_messages(value)))
    check_chat(messages, parts=parts)
    return messages


def check_chat(messages: Sequence[Message], *, parts: bool = False) -> None:
    """Refuse messages of unknown roles, and contents that are neither text nor parts that are texts.

    Args:
        parts: the model reads images, so contents may have images too, but the assistant's.

    Raises:
        RowProblem: there is such a message.
    """
    for number, message in enumerate(messages, start=1):
        role, content = message["role"], message.get("content")
        if role not in ROLES:
            raise RowProblem(
                "unknown role",
                f"message {number}: expected a role of {', '.join(ROLES)}; got {role!r}"
                + (f". Call it {OTHERS[role.lower()]!r}" if role.lower() in OTHERS else ""),
            )
        if content is None or isinstance(content, str) or all(map(_is_text, content)):
            continue
        if not parts:
            raise RowProblem(
                "not text",
                f"message {number}: expected text as content, got {type(content).__name__} with an image or a video; "
                "images need a model that reads them: choose its reader with --model.vision",
            )
        if role == ASSISTANT or not _are_parts(content):
            raise RowProblem(
                "not text",
                f"message {number}: expected text as content"
                + (
                    ""
                    if role == ASSISTANT
                    else ", or a list of parts that are images, videos and texts"
                )
                + f"; got {content!r:.60}",
            )


def _are_parts(content: object) -> bool:
    return isinstance(content, Sequence) and all(
        is_seen(part) or _is_text(part) for part in content
    )


def _is_text(part: object) -> bool:
    return isinstance(part, str) or (
        isinstance(part, Mapping) and not is_seen(part) and isinstance(part.get("text"), str)
    )


def _with_plain_answer(message: Message) -> Message:
    """Return a message of the assistant whose content is a list of texts with the text alone."""
    content = message.get("content")
    if message["role"] == ASSISTANT and is_list(content) and all(map(_is_text, content)):
        texts = [part if isinstance(part, str) else part["text"] for part in content]
        return {**message, "content": "".join(texts)}
    return message


def answers_in(messages: Sequence[Message], *, start: int = 0) -> tuple[int, ...]:
    """Return the indices of the assistant's messages from index ``start`` on; each says something.

    Raises:
        RowProblem: there are none, or one has neither text nor tool calls.
    """
    found = tuple(
        index
        for index, message in enumerate(messages)
        if index >= start and message["role"] == ASSISTANT
    )
    if not found:
        raise RowProblem("no answer", "expected a message of the assistant; there is none")
    for index in found:
        check_answer(messages[index], index)
    return found


def said_by(messages: Sequence[Message], roles: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of the messages of some roles, none the assistant's, that say something.

    Raises:
        RowProblem: one has an image or a video, which nobody learns to write.
    """
    found = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if message["role"] not in roles or not content:
            continue
        if not isinstance(content, str) and any(map(is_seen, content)):
            raise RowProblem(
                "not text",
                f"message {index + 1}: the role {message['role']!r} is learned, but the content has an image or a "
                "video, which a policy does not write; leave the role out of data.roles",
            )
        if not isinstance(content, str) or content.strip():
            found.append(index)
    return tuple(found)


def check_answer(message: Message, index: int) -> None:
    """Refuse an assistant's message with neither text nor tool calls.

    Raises:
        RowProblem: the message is such.
    """
    if not (message.get("content") or "").strip() and not message.get("tool_calls"):
        raise RowProblem(
            "empty answer", f"message {index + 1}: the assistant says nothing; leave it out"
        )


def tools_of(row: Row, key: str | None) -> list[dict[str, Any]] | None:
    """Return the tools of a row; None where it has none.

    Raises:
        RowProblem: the column is missing, or holds anything but objects.
    """
    if key is None:
        return None
    if key not in row:
        raise no_column(row, key, "Set --data.tools_key")
    value = row[key]
    try:
        if isinstance(value, str):
            value = parse_json(value) if value.strip() else None
        if isinstance(value, list):
            value = [parse_json(tool) if _is_object_text(tool) else tool for tool in value]
    except ValueError as error:
        raise RowProblem("bad tools", f"column {key!r}: {error}") from error
    if not value:
        return None
    if not isinstance(value, Sequence) or not all(isinstance(tool, Mapping) for tool in value):
        raise RowProblem(
            "bad tools",
            f"column {key!r}: expected a list of JSON schemas of tools, got {value!r:.60}",
        )
    return [dict(tool) for tool in value]


def _is_object_text(tool: object) -> bool:
    """Return whether a tool is JSON text, as in tables of tools that differ."""
    return isinstance(tool, str) and tool.lstrip().startswith("{")
