"""Fields of a message that say whether it is learned: ``"weight": 0``, ``"train": false`` and ``"loss": false`` make it
context. Of a whole row they say that it is not to be learned from.

``weight`` is that of OpenAI's files for fine-tuning, where it is 0 or 1 too; another weight would scale a loss whose
aggregation counts tokens, and is refused. Other trainers call it ``LEARNED_FIELDS``: ``loss`` is ms-swift's,
``trainable`` Tinker's. The fields are no part of what a template shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.batch.task import Message

from ..chat.template.pieces import LEARNED_FIELDS, WEIGHT
from ..rows import RowProblem
from ..source import Row
from .messages import ASSISTANT, answers_in


def check_row(row: Row, columns: Sequence[str]) -> None:
    """Refuse a row that says of itself that it is not learned: ``"weight": 0``, ``"train": false`` or ``"loss": false``
    beside its conversation. Other values may be of anything.

    Args:
        columns: those that options name, which mean what the options say.

    Raises:
        RowProblem: it does.
    """
    for field in LEARNED_FIELDS:
        value = row.get(field)
        is_zero = field == WEIGHT and isinstance(value, int | float) and value == 0
        if field not in columns and (value is False or is_zero):
            raise RowProblem(
                "weight",
                f"the row has {field!r} {value!r}, so nothing of it is to be learned; leave the row out "
                "(--data.on_bad_row skip does), or the column",
            )


def learned_answers(messages: Sequence[Message], *, only_last: bool = False) -> tuple[int, ...]:
    """Return the indices of the assistant's messages that are learned: all of them, or the last, but those of weight 0.

    Raises:
        RowProblem: there are none, one says nothing, or a field cannot be obeyed.
    """
    answers = answers_in(messages)
    given = [_is_learned(message, index) for index, message in enumerate(messages)]
    for index, message in enumerate(messages):
        if given[index] and message["role"] != ASSISTANT:
            field = next(field for field in LEARNED_FIELDS if field in message)
            raise RowProblem(
                "weight",
                f"message {index + 1}: {field!r} is {message[field]!r}, but only messages of the assistant are "
                f"learned, and its role is {message['role']!r}; leave the field out",
            )
    wanted = answers[-1:] if only_last else answers
    found = tuple(index for index in wanted if given[index] is not False)
    if not found:
        which = "the last message" if only_last else "each message"
        raise RowProblem(
            "nothing to learn",
            f'{which} of the assistant has "weight" 0, "train" or "loss" false, so nothing of the row is learned; '
            "leave the row out, or the field",
        )
    return found


def check_judged(messages: Sequence[Message], answers: Sequence[int]) -> None:
    """Refuse weights of 0 within an answer that was judged: the judgment is of the whole.

    Args:
        answers: indices of the messages of the answer.

    Raises:
        RowProblem: a message of the answer is not to be learned, or a field cannot be obeyed.
    """
    for index, message in enumerate(messages):
        if _is_learned(message, index) is False and index in answers:
            raise RowProblem(
                "weight",
                f'message {index + 1}: it is not to be learned ("weight" 0, "train" or "loss" false), but belongs '
                "to an answer that was judged as a whole. Leave the field out, or put the message into the prompt",
            )


def check_prompt(messages: Sequence[Message]) -> None:
    """Refuse a message of a prompt that is to be learned: of prompt and response, the response alone is.

    Raises:
        RowProblem: there is one, or a field cannot be obeyed.
    """
    for index, message in enumerate(messages):
        if _is_learned(message, index):
            field = next(field for field in LEARNED_FIELDS if field in message)
            raise RowProblem(
                "weight",
                f"message {index + 1} of the prompt: {field!r} is {message[field]!r}, but of a row with a prompt and a "
                "response the response alone is learned; put the whole conversation into a column 'messages', or leave "
                "the field out",
            )


def without_weights(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages without these fields."""
    return tuple(
        {key: value for key, value in message.items() if key not in LEARNED_FIELDS}
        if any(field in message for field in LEARNED_FIELDS)
        else message
        for message in messages
    )


def _is_learned(message: Message, index: int) -> bool | None:
    """Return what a message says of itself; None: nothing."""
    said = {key: message[key] for key in LEARNED_FIELDS if key in message}
    for key, value in said.items():
        # True and 1.0 are 1 for Python; a table may have made numbers of either.
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            expected = "0 or 1" if key == WEIGHT else "true or false"
            raise RowProblem(
                "weight",
                f"message {index + 1}: expected {expected} as {key!r}, got {value!r:.60}; a message is learned, or it "
                "is context",
            )
    if len(set(map(bool, said.values()))) > 1:
        both = " and ".join(f"{key!r} is {value!r}" for key, value in said.items())
        raise RowProblem("weight", f"message {index + 1}: {both}; leave one of them out")
    return next(map(bool, said.values()), None)
