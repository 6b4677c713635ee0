"""Words about rows whose columns have other names or types than the ones that are read, for messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .source import Row, printed_list

_CONVERSATIONS = ("messages", "conversations", "conversation")
_QUESTIONS = ("prompt", "question", "query", "problem", "instruction", "input", "inputs", "context")
"""Columns that have conversations, and that ask, in sets that many people have, for what is said of rows."""
_ANSWERS = ("response", "output", "completion", "solution", "answer", "targets")
"""Columns with answers there."""


def other_rows(row: Row) -> str:
    """Return what is said of a row that has no prompt since it is of no form; empty of any other."""
    if "parent_id" in row:
        return "These are messages of a tree: write each of its conversations as a row with a list of messages"
    for name in _CONVERSATIONS:
        if row.get(name) and not _are_messages(row[name]) and not printed_list(row[name]):
            return (
                f"Column {name!r} has no messages, which are a list of objects with 'role' and 'content', or with "
                f"'from' and 'value': {row[name]!r:.60}"
            )
    return ""


def near_prompts(row: Row) -> list[str]:
    """Return the columns that may be meant, those in which many sets ask."""
    return _called(row, _QUESTIONS)


def near_answer(row: Row, option: str) -> str:
    """Return the column that is meant, where it is one of those in which many sets have answers."""
    found = _called(row, _ANSWERS)
    return f" {found[0]}" if option == "response_key" and found else ""


def way_to_text(value: object) -> str:
    """Return how a value that is no text is written where text or messages are read, behind the words on the value."""
    if isinstance(value, int | float):
        return f'; write it as text, "{value}"'
    if isinstance(value, bytes):
        return "; write its text: cast the column to a string, or decode() each value"
    if isinstance(value, Mapping) and "role" in value:
        return "; write a message as a list of one, [message]"
    return ""


def _called(row: Row, names: Sequence[str]) -> list[str]:
    """Return the columns of a row with text that have one of some names, in small letters or not, in their order."""
    words = {str(name).strip().lower(): str(name) for name in row if isinstance(row[name], str)}
    return [words[name] for name in names if name in words]


def _are_messages(value: object) -> bool:
    return isinstance(value, Sequence) and all(
        isinstance(one, Mapping) and ("role" in one or {"from", "value"} <= one.keys())
        for one in value
    )
