"""Fields of a message that say whether it is learned: ``"weight": 0``, ``"train": false`` and ``"loss": false`` make it
context. Of a whole row they say that it is not to be learned from.

``weight`` is that of OpenAI's files for fine-tuning, where it is 0 or 1 too; another weight would scale a loss whose
aggregation counts tokens, and is refused. Other trainers call it ``LEARNED_FIELDS``: ``loss`` is ms-swift's,
``trainable`` Tinker's. The fields are no part of what a template shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.batch.task import Message

from ..chat.template.pieces import LEARNED_FIELDS, PARTS_LEARNED, WEIGHT
from ..rows import RowProblem
from ..source import Row
from .messages import ASSISTANT, answers_in, said_by


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


def learned_messages(
    messages: Sequence[Message], *, only_last: bool = False, roles: Sequence[str] = (ASSISTANT,)
) -> tuple[int, ...]:
    """Return the indices of the messages of some roles that are learned: all of them, or the last, but those of weight
    0.

    Raises:
        RowProblem: there are none, one of the assistant says nothing, or a field cannot be obeyed.
    """
    answers = answers_in(messages) if ASSISTANT in roles else ()
    others = said_by(messages, [role for role in roles if role != ASSISTANT])
    given = [_is_learned(message, index) for index, message in enumerate(messages)]
    for index, message in enumerate(messages):
        if given[index] and message["role"] not in roles:
            field = next(field for field in LEARNED_FIELDS if field in message)
            raise RowProblem(
                "weight",
                f"message {index + 1}: {field!r} is {message[field]!r}, but only messages of the "
                f"{' and the '.join(roles)} are learned, and its role is {message['role']!r}; leave the field out, or "
                "name the role in --data.roles",
            )
    wanted = sorted([*answers, *others])
    found = tuple(index for index in wanted[-1 if only_last else 0 :] if given[index] is not False)
    if not found:
        which = "the last message" if only_last else "each message"
        raise RowProblem(
            "nothing to learn",
            f'{which} of the {" and the ".join(roles)} has "weight" 0, "train" or "loss" false, so nothing of the row '
            "is learned; leave the row out, or the field"
            if wanted
            else f"the row has no message of the {' or the '.join(roles)} that says something (data.roles)",
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
    fields = (*LEARNED_FIELDS, PARTS_LEARNED)
    return tuple(
        {key: value for key, value in message.items() if key not in fields}
        if any(field in message for field in fields)
        else message
        for message in messages
    )


def _is_learned(message: Message, index: int) -> bool | None:
    """Return what a message says of itself; None: nothing."""
    if message.get(PARTS_LEARNED):
        raise RowProblem(
            "weight",
            f"message {index + 1}: {PARTS_LEARNED!r} says which characters are learned, but a message is learned "
            "whole, or is context; split the message, or say 'train' true or false of it",
        )
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
