"""Preference pairs in the columns of a row: texts, messages, and the transcripts of HH-RLHF."""

from __future__ import annotations

import re
from typing import Any

from ..rows import RowProblem, no_column
from ..source import Row
from .answers import INSTRUCTION, PROMPT, has_prompt, instruction
from .chats import (
    ASSISTANT,
    MESSAGES,
    USER,
    as_turns,
    conversation,
    has_chat,
    has_question,
    has_sharegpt,
    is_chat,
    is_sharegpt,
    messages_of,
)

CHOSEN, REJECTED = _BOTH = ("chosen", "rejected")
OTHER_ANSWER = "rejected_response"
"""Column with another answer to a conversation, as ms-swift has it."""
_SPEAKER = re.compile(r"(?:\A|\n\n)(Human|Assistant):")
_ROLES = {"Human": USER, "Assistant": ASSISTANT}


def is_transcripts(row: Row) -> bool:
    """Return whether both answers are whole transcripts of HH-RLHF, ``\\n\\nHuman: ...\\n\\nAssistant: ...``."""
    return all(_is_transcript(row.get(name)) for name in _BOTH)


def is_pair(row: Row) -> bool:
    """Return whether a row has two answers: texts behind a prompt, or messages of a whole conversation or its end, of
    which an end may be one message."""
    return (has_prompt(row) and _are_texts(row)) or all(
        is_chat(as_turns(row.get(name))) for name in _BOTH
    )


def is_answered_pair(row: Row) -> bool:
    """Return whether a row has a conversation, and two answers to it that are a turn or a list of turns: all as
    ShareGPT writes them, or as chat messages."""
    both = [as_turns(row.get(name)) for name in _BOTH]
    if has_sharegpt(row):
        return all(map(is_sharegpt, both))
    answers = all(is_chat(one) and one[0]["role"] == ASSISTANT for one in both)
    return answers and has_question(row) and not has_prompt(row)


def is_alpaca_pair(row: Row) -> bool:
    """Return whether a row has Alpaca's instruction, and two answers as texts."""
    return isinstance(row.get(INSTRUCTION), str) and _are_texts(row)


def has_other_answer(row: Row) -> bool:
    """Return whether a row has a conversation, and another answer in the place of its last one: a text, or messages."""
    other = row.get(OTHER_ANSWER)
    is_answer = (isinstance(other, str) and bool(other.strip())) or is_chat(as_turns(other))
    return is_answer and (has_chat(row) or has_sharegpt(row))


def transcripts(row: Row) -> Row:
    """Return a row of HH-RLHF with both transcripts as chat messages.

    Raises:
        RowProblem: a column has no transcript, or one that does not end with the assistant.
    """
    return {**row, **{name: _messages(row.get(name), name) for name in _BOTH}}


def answered_pair(row: Row) -> Row:
    """Return a row with a conversation and two answers to it as one with prompt and answers of chat messages.

    Raises:
        RowProblem: one of them is none, there is no conversation, or as from ``chats.conversation``.
    """
    both = {name: as_turns(row.get(name)) for name in _BOTH}
    for name, turns in both.items():
        if not is_sharegpt(turns) and not is_chat(turns):
            raise RowProblem(
                "another form",
                f"column {name!r}: expected a turn with 'from' and 'value', or a message with 'role' and 'content'; "
                f"got {row.get(name)!r:.60}",
            )
    answers = {
        name: turns if is_chat(turns) else messages_of(turns) for name, turns in both.items()
    }
    asked_in = conversation(row).get(MESSAGES)
    if asked_in is None:
        raise no_column(row, "conversations", "It has what the two answers are given to.")
    return {**row, PROMPT: asked_in, **answers}


def other_answer(row: Row) -> Row:
    """Return a row with a conversation and another last answer as one with prompt and answers of chat messages.

    Raises:
        RowProblem: the conversation does not end with an answer, the other one is none, or as from
            ``chats.conversation``.
    """
    if not has_other_answer(row):
        raise RowProblem(
            "another form",
            f"expected a conversation, and a text or messages in the column {OTHER_ANSWER!r}; got "
            f"{row.get(OTHER_ANSWER)!r:.60}",
        )
    messages, other = conversation(row)[MESSAGES], row[OTHER_ANSWER]
    *asked, answer = as_turns(messages)
    if answer.get("role") != ASSISTANT:
        raise RowProblem(
            "no answer",
            f"expected a conversation that ends with the answer to which {OTHER_ANSWER!r} is the worse one; it ends "
            f"with {answer.get('role')!r}",
        )
    rejected = [{"role": ASSISTANT, "content": other}] if not is_chat(as_turns(other)) else other
    return {**row, PROMPT: asked, CHOSEN: [answer], REJECTED: rejected}


def alpaca_pair(row: Row) -> Row:
    """Return a row with Alpaca's instruction as the prompt of its two answers.

    Raises:
        RowProblem: as from ``answers.alpaca``.
    """
    return {**row, PROMPT: instruction(row)}


def asked(row: Row) -> Row:
    """Return a row whose prompt is its own, or the messages with which both answers begin."""
    if has_prompt(row):
        return row
    both = [list(as_turns(row[name])) for name in _BOTH]
    shared = 0
    while shared < min(map(len, both)) and both[0][shared] == both[1][shared]:
        shared += 1
    return {**row, PROMPT: both[0][:shared]}


def _are_texts(row: Row) -> bool:
    return all(isinstance(row.get(name), str) for name in _BOTH)


def _is_transcript(value: object) -> bool:
    return isinstance(value, str) and value.lstrip().startswith("Human:") and "Assistant:" in value


def _messages(value: object, name: str) -> list[dict[str, Any]]:
    if not _is_transcript(value):
        raise RowProblem(
            "another form",
            f"column {name!r}: expected a transcript that begins with '\\n\\nHuman:' and has an '\\n\\nAssistant:'; "
            f"got {value!r:.60}",
        )
    assert isinstance(value, str)
    pieces = _SPEAKER.split(value.lstrip())
    messages = [
        {"role": _ROLES[speaker], "content": text.strip()}
        for speaker, text in zip(pieces[1::2], pieces[2::2], strict=True)
    ]
    if messages[-1]["role"] != ASSISTANT:
        raise RowProblem(
            "no answer",
            f"column {name!r}: expected a transcript that ends with the assistant's answer",
        )
    return messages
