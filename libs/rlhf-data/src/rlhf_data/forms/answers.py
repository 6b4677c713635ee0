"""Prompts with answers in the columns of a row: Alpaca's, prompts with completions, answers with labels and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..rows import RowProblem
from ..source import Row, is_list
from .chats import (
    ASSISTANT,
    LABEL,
    MESSAGES,
    USER,
    apart,
    as_list,
    as_turns,
    chat_column,
    conversation,
    has_chat,
    has_question,
    has_sharegpt,
    is_chat,
    truth_of,
    with_system,
)

PROMPT, RESPONSE, COMPLETION = "prompt", "response", "completion"
STEPS, STEP_LABELS = "completions", "labels"
VERL = "extra_info"
"""Column of verl's rows with a question and its answer, as its scripts for GSM8K write them."""
QUESTION, ANSWER = "question", "answer"
INSTRUCTION, HISTORY = "instruction", "history"
INPUTS, OUTPUTS = ("input", "context"), ("output", "response")
"""Names of Alpaca's other columns: its own, and those of Dolly; the first one that a row has is read."""


def has_prompt(row: Row) -> bool:
    """Return whether a row has a prompt, as text or as messages."""
    return isinstance(row.get(PROMPT), str) or is_chat(row.get(PROMPT))


def has_response(row: Row) -> bool:
    """Return whether a row has a prompt and a response of text, to imitate: no label of true or false says that it may
    be bad. A number beside a response is mostly the right answer of its prompt."""
    return _has_text(row, RESPONSE) and not isinstance(row.get(LABEL), bool)


def has_completion(row: Row) -> bool:
    """Return whether a row has a prompt and a completion of text, to imitate: no label says that it may be bad."""
    return _has_text(row, COMPLETION) and not is_judged(row)


def has_chat_completion(row: Row) -> bool:
    """Return whether a row has a prompt and a completion of messages, to imitate as in ``has_completion``."""
    return _has_chat_completion(row) and not is_judged(row)


def has_conversation(row: Row) -> bool:
    """Return whether a row has a conversation of messages, to imitate as in ``has_completion``."""
    return has_chat(row) and not isinstance(row.get(LABEL), bool)


def has_turns(row: Row) -> bool:
    """Return whether a row has a conversation of ShareGPT's turns, to imitate as in ``has_completion``."""
    return has_sharegpt(row) and not isinstance(row.get(LABEL), bool)


def is_judged(row: Row) -> bool:
    """Return whether a label says of a row's answer whether it is good."""
    return truth_of(row.get(LABEL)) is not None


def has_judged_completion(row: Row) -> bool:
    """Return whether a row is a prompt with a completion of text, and a label."""
    return is_judged(row) and _has_text(row, COMPLETION)


def has_judged_response(row: Row) -> bool:
    """Return whether a row is a prompt with a response of text, and a label."""
    return is_judged(row) and _has_text(row, RESPONSE)


def has_judged_chat(row: Row) -> bool:
    """Return whether a row is a conversation with a label of its last answer. Beside ShareGPT's and Alpaca's columns a
    number is mostly a class."""
    if has_chat(row):
        return isinstance(row.get(LABEL), bool) or (is_judged(row) and not has_question(row))
    if has_sharegpt(row) or _has_alpaca(row):
        return isinstance(row.get(LABEL), bool)
    return is_judged(row) and _has_chat_completion(row)


def has_text(row: Row) -> bool:
    """Return whether a row has a text that is whole by itself: no message of a tree, as in OpenAssistant's rows."""
    return isinstance(row.get("text"), str) and "parent_id" not in row


def has_steps(row: Row) -> bool:
    """Return whether a row is a prompt with a list of steps and a list of labels, which may be JSON text."""
    return has_prompt(row) and all(is_list(as_list(row.get(name))) for name in (STEPS, STEP_LABELS))


def is_alpaca(row: Row) -> bool:
    """Return whether a row has Alpaca's columns or Dolly's, to imitate as in ``has_completion``; ``input`` may be left
    out."""
    return _has_alpaca(row) and not isinstance(row.get(LABEL), bool)


def _has_alpaca(row: Row) -> bool:
    return (
        isinstance(row.get(INSTRUCTION), str)
        and isinstance(row.get(_first(row, OUTPUTS)), str)
        and isinstance(row.get(_first(row, INPUTS)), str | None)
    )


def alpaca(row: Row) -> Row:
    """Return a row of Alpaca's columns as a conversation: ``instruction``, a new line, ``input``; then ``output``.

    Source: LLaMA-Factory's data/README.md, which says the same of ``system`` and ``history``, a list of earlier
    questions with their answers. Alpaca's own text ("Below is an instruction ...") is for models without a template.

    Raises:
        RowProblem: a column is missing or no text, or the history is no list of pairs.
    """
    answer = {"role": ASSISTANT, "content": _text(row, _first(row, OUTPUTS))}
    return {**row, MESSAGES: [*instruction(row), answer]}


def instruction(row: Row) -> list[dict[str, Any]]:
    """Return the messages before the answer in a row of Alpaca's columns.

    Raises:
        RowProblem: as from ``alpaca``.
    """
    asks = [_text(row, INSTRUCTION)]
    if row.get(beside := _first(row, INPUTS)):
        asks.append(_text(row, beside))
    asked = {"role": USER, "content": "\n".join(filter(None, asks))}
    messages = [*earlier(row.get(HISTORY)), asked]
    return with_system(row, messages)


def chat_completion(row: Row) -> Row:
    """Return a row as one conversation in which only the completion is learned.

    Raises:
        RowProblem: the prompt or the completion is not a list of messages.
    """
    prompt, answer = _asked_and_said(row)
    given = [
        {**message, "train": False} if message["role"] == ASSISTANT else message
        for message in prompt
    ]
    return {**row, MESSAGES: [*given, *answer]}


def _asked_and_said(row: Row) -> tuple[list[Any], list[Any]]:
    """Return the messages of the prompt, and those of the answer, as from ``chats.apart``."""
    name = _chat_answer(row)
    prompt, answer = row.get(PROMPT), as_turns(row.get(name))
    if isinstance(prompt, str):
        prompt = [{"role": USER, "content": prompt}]
    for column, value in ((PROMPT, prompt), (name, answer)):
        if not is_chat(value):
            raise RowProblem(
                "another form",
                f"column {column!r}: expected a list of chat messages, got {type(row.get(column)).__name__}",
            )
    assert prompt is not None
    return apart(prompt, answer)


def judged_chat(row: Row) -> Row:
    """Return a row as one conversation whose last answer has the label.

    Raises:
        RowProblem: the completion is not one message: a label judges one answer.
    """
    name = _chat_answer(row)
    if not is_chat(as_turns(row.get(name))):
        is_alone = chat_column(row) is None and isinstance(row.get(INSTRUCTION), str)
        return alpaca(row) if is_alone else conversation(row)
    prompt, answer = _asked_and_said(row)
    if len(answer) != 1:
        raise RowProblem(
            "several answers",
            f"column {name!r}: expected one message of the assistant, since the label judges one answer; got "
            f"{len(answer)} messages",
        )
    return {**row, MESSAGES: [*prompt, *answer]}


def has_verl_answer(row: Row) -> bool:
    """Return whether a row has a question and its answer where verl's rows for GSM8K have them, and no response."""
    inside = row.get(VERL)
    return (
        isinstance(inside, Mapping)
        and all(isinstance(inside.get(name), str) for name in (QUESTION, ANSWER))
        and not isinstance(row.get(RESPONSE), str)
    )


def verl_answer(row: Row) -> Row:
    """Return a row of verl's with its question as the user's message, and its answer as the response.

    Raises:
        RowProblem: it has no question or no answer.
    """
    if not has_verl_answer(row):
        raise RowProblem(
            "another form",
            f"column {VERL!r}: expected an object with {QUESTION!r} and {ANSWER!r}, both text",
        )
    inside = row[VERL]
    question = [{"role": USER, "content": inside[QUESTION]}]
    return {**row, PROMPT: question, RESPONSE: inside[ANSWER]}


def has_history(row: Row) -> bool:
    """Return whether a row has a list of earlier turns before its prompt; any other value does not count."""
    value = row.get(HISTORY)
    return is_list(value) and len(value) > 0


def earlier(history: object) -> list[dict[str, Any]]:
    """Return what was said before, pairs of a question and its answer, or chat messages, as messages; none where there
    is no history.

    Raises:
        RowProblem: it is neither.
    """
    if not history:
        return []
    if is_chat(history):
        return [dict(message) for message in history]
    if not is_list(history) or not all(map(_is_pair, history)):
        raise RowProblem(
            "bad history",
            f"column {HISTORY!r}: expected a list of questions with their answers, got {history!r:.60}",
        )
    roles = (USER, ASSISTANT)
    return [
        {"role": role, "content": text}
        for pair in history
        for role, text in zip(roles, pair, strict=True)
    ]


def _first(row: Row, names: Sequence[str]) -> str:
    """Return the first of several names that a row has, or the first of all."""
    return next((name for name in names if name in row), names[0])


def _has_text(row: Row, name: str) -> bool:
    return has_prompt(row) and isinstance(row.get(name), str)


def _has_chat_completion(row: Row) -> bool:
    return has_prompt(row) and is_chat(as_turns(row.get(_chat_answer(row))))


def _chat_answer(row: Row) -> str:
    """Return the column with an answer of messages."""
    has = [name for name in (COMPLETION, RESPONSE) if is_chat(as_turns(row.get(name)))]
    return has[0] if has else COMPLETION


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise RowProblem(
            "another form", f"column {name!r}: expected text, got {type(value).__name__}"
        )
    return value


def _is_pair(value: object) -> bool:
    return is_list(value) and len(value) == 2 and all(isinstance(text, str) for text in value)
