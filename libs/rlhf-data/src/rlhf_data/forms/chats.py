"""Conversations in the columns of a row: chat messages, and ShareGPT's turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard

from rlhf_core.outside.json_reader import parse_json

from ..chat.parsing.families import THOUGHTS
from ..rows import RowProblem
from ..source import Row, is_list

COLUMNS = ("messages", "conversations", "conversation")
"""Columns that may hold a conversation; the first one that does is read."""
ANSWERS = ("prompt", "completion", "chosen", "rejected")
"""Further columns that may hold messages, or the JSON text of messages."""
MESSAGES = COLUMNS[0]
LABEL, KTO_TAG = "label", "kto_tag"
"""Columns that say whether a row's answer is good: our own, and LLaMA-Factory's."""
SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
SYSTEM_COLUMNS = (SYSTEM, "system_prompt")
"""Columns that may hold a row's system message, the second as in OpenOrca; the first one with a text is read."""
_TOOL_CALL = "function_call"
ROLES = {
    "system": SYSTEM,
    "human": USER,
    "user": USER,
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bot": ASSISTANT,
    "model": ASSISTANT,
    "assistant": ASSISTANT,
    _TOOL_CALL: ASSISTANT,
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function": "tool",
    "ipython": "tool",
}
"""Whose turn it is in ShareGPT's ``from`` -> role."""

Messages = list[dict[str, Any]]


def as_turns(value: Any) -> Any:
    """Return a single turn or message as a list of one, and anything else as it is."""
    return [value] if isinstance(value, Mapping) else value


def as_list(value: Any) -> Any:
    """Return a list that is JSON text as a list, and anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):
            return parse_json(value)
    return value


def is_chat(value: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Return whether a value is a list of messages with roles."""
    return _is_list(value, "role")


def is_sharegpt(value: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Return whether a value is a list of turns with ``from`` and ``value``."""
    return _is_list(value, "from", "value")


def decoded(row: Row) -> Row:
    """Return a row whose conversations that are JSON text are lists, and whose ``kto_tag`` is its label; the row itself
    where none is."""
    found: dict[str, Any] = {
        name: parse_json(row[name]) for name in (*COLUMNS, *ANSWERS) if _is_text(row.get(name))
    }
    if row.get(LABEL) is None and (is_good := truth_of(row.get(KTO_TAG))) is not None:
        found[LABEL] = is_good
    return {**row, **found} if found else row


def truth_of(label: object) -> bool | None:
    """Return whether a label is true; None if it says neither.

    It may be a number, and a text: cells of CSV are text, and a table of mixed values is written as such.
    """
    if isinstance(label, str):
        word = label.strip().lower().removesuffix(".0")
        return {"true": True, "1": True, "false": False, "0": False}.get(word)
    return bool(label) if isinstance(label, int | float) and label in (0, 1) else None


def chat_column(row: Row) -> str | None:
    """Return the name of the first column that holds a conversation in any of its forms."""
    return next(
        (name for name in COLUMNS if is_chat(row.get(name)) or is_sharegpt(row.get(name))), None
    )


def has_chat(row: Row) -> bool:
    """Return whether a row has a conversation as chat messages."""
    column = chat_column(row)
    return column is not None and is_chat(row[column])


def has_sharegpt(row: Row) -> bool:
    """Return whether a row has a conversation as ShareGPT writes it."""
    column = chat_column(row)
    return column is not None and is_sharegpt(row[column])


def has_question(row: Row) -> bool:
    """Return whether a row has a conversation that ends with what the policy is to answer."""
    return has_chat(row) and row[chat_column(row) or MESSAGES][-1]["role"] != ASSISTANT


def conversation(row: Row) -> Row:
    """Return a row with its conversation as chat messages in the column ``messages``, as far as it has one.

    A column ``system`` or ``system_prompt`` is the system message of ShareGPT's turns.

    Raises:
        RowProblem: nobody knows whose turn one is, or its tool call is none.
    """
    column = chat_column(row) or next((name for name in COLUMNS if name in row), MESSAGES)
    given = row.get(column)
    if is_sharegpt(given):
        return {**row, MESSAGES: with_system(row, messages_of(given))}
    return row if column == MESSAGES else {**row, MESSAGES: given}


def messages_of(turns: Sequence[Mapping[str, Any]]) -> Messages:
    """Return turns of ShareGPT as chat messages.

    Raises:
        RowProblem: as from ``conversation``.
    """
    return [_message(turn, number) for number, turn in enumerate(turns, start=1)]


def question(row: Row) -> Row:
    """Return a row whose prompt is its conversation, which ends with what the policy is to answer.

    Raises:
        RowProblem: as from ``conversation``.
    """
    made = conversation(row)
    return {**made, "prompt": made.get(MESSAGES)}


def with_system(row: Row, messages: Messages) -> Messages:
    """Return messages behind the system message that a column of the row has.

    Raises:
        RowProblem: the messages have another one.
    """
    column = _system_column(row)
    if column is None:
        return messages
    system = row[column]
    first: Mapping[str, Any] = messages[0] if messages else {}
    if first.get("role") != SYSTEM:
        return [{"role": SYSTEM, "content": system}, *messages]
    if first.get("content") == system:
        return messages
    raise RowProblem(
        "two system prompts",
        f"the conversation begins with a system message, and the column {column!r} has another one; leave one out",
    )


def has_system(row: Row) -> bool:
    """Return whether a row has a system message in its own column."""
    return _system_column(row) is not None


def _system_column(row: Row) -> str | None:
    texts = (name for name in SYSTEM_COLUMNS if isinstance(row.get(name), str))
    return next((name for name in texts if row[name].strip()), None)


def apart(prompt: Sequence[Any], answer: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the messages of a prompt, and those of an answer without the prompt, which it may begin with again. Either
    may lack the system message of the other.

    Raises:
        RowProblem: both have one, and they differ.
    """
    given, said = list(prompt), list(answer)
    systems = [one[:1] if one[0].get("role") == SYSTEM else [] for one in (given, said)]
    asked = given[len(systems[0]) :]
    end = len(systems[1]) + len(asked)
    if said[len(systems[1]) : end] != asked:
        return given, said
    if all(systems) and systems[0] != systems[1]:
        raise RowProblem(
            "two system prompts",
            "the prompt and the answers that repeat it begin with different system messages; leave one out",
        )
    return [*(systems[0] or systems[1]), *asked], said[end:]


def asked(row: Row) -> Row:
    """Return a row whose prompt is its conversation up to the last answer of the assistant."""
    messages = row.get(MESSAGES)
    if is_chat(messages):
        ends = [n for n, message in enumerate(messages) if message["role"] != ASSISTANT]
        messages = list(messages)[: ends[-1] + 1 if ends else 0]
    return {**row, "prompt": messages}


def _is_text(value: object) -> bool:
    """Return whether a value is the JSON text of a list of messages or turns."""
    found = as_list(value)
    return found is not value and (is_chat(found) or is_sharegpt(found))


def _is_list(value: object, *keys: str) -> bool:
    return (
        is_list(value)
        and len(value) > 0
        and all(isinstance(entry, Mapping) and all(key in entry for key in keys) for entry in value)
    )


def _message(turn: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a turn of ShareGPT as a chat message, with its other fields (``weight``, ...) as they are."""
    role = ROLES.get(str(turn["from"]).lower())
    if role is None:
        raise RowProblem(
            "unknown role",
            f"turn {number}: expected 'from' to be one of {', '.join(ROLES)}; got {turn['from']!r:.60}",
        )
    rest = {key: value for key, value in turn.items() if key not in ("from", "value")}
    if turn["from"] == _TOOL_CALL:
        thought, called = _apart_from_thought(turn["value"])
        return {**rest, "role": role, "content": thought, "tool_calls": _calls(called, number)}
    return {**rest, "role": role, "content": turn["value"]}


def _apart_from_thought(value: Any) -> tuple[str, Any]:
    """Return the thought before a call with its tags, as LLaMA-Factory writes it, and the call; no text where there is
    none."""
    for begin, end in THOUGHTS:
        if isinstance(value, str) and value.lstrip().startswith(begin) and end in value:
            thought, _, called = value.partition(end)
            return thought.lstrip() + end, called
    return "", value


def _calls(value: object, number: int) -> list[dict[str, Any]]:
    """Return the tool calls of a turn: JSON with ``name`` and ``arguments``, or a list of such."""
    try:
        found = parse_json(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    calls: list[Any] = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(call, Mapping) and "name" in call for call in calls):
        raise RowProblem(
            "bad tool call",
            f"turn {number}: expected JSON with the name and the arguments of a call; got {value!r:.200}",
        )
    return [
        {
            "type": "function",
            "function": {"name": call["name"], "arguments": call.get("arguments", {})},
        }
        for call in calls
    ]
