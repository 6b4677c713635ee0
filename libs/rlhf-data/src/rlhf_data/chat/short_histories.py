"""Short conversations that stand for long ones, where a chat template writes the same behind an answer in both.

What a template writes behind an answer decides which tokens come before the policy's next turn. Most templates write
the same, however much was said before, and rendering a few messages is enough to know it. Whether a template is of this
kind is tried once for each shape of a turn, on conversations that are made here; elsewhere the whole conversation is
rendered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from rlhf_core.batch.task import Message
from rlhf_core.errors import DataError

_HEAD_ROLES = ("system", "developer")
_TURN_ROLES = ("user", "assistant", "tool")
_FOLLOWING_ROLES = ("user", "tool")
_MOST_ALIKE = 2
"""Calls, or messages of one role in a row, beyond which a turn has the same shape."""

USER: Message = {"role": "user", "content": "Hello"}
_SYSTEM: Message = {"role": "system", "content": "Be kind."}
_ANSWER: Message = {"role": "assistant", "content": "It is so."}
_THOUGHT: Message = {**_ANSWER, "reasoning_content": "Hm."}
_TAGGED: Message = {**_ANSWER, "content": "<think>\nHm.\n</think>\n\nIt is so."}
_TOOLS = ({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},)


class TurnShape(NamedTuple):
    """Properties of the last turn of a conversation that a template may look at."""

    has_system: bool
    has_tools: bool
    num_calls: int
    """Calls of the last answer, at most 2."""
    roles: tuple[str, ...]
    """Roles of the messages that follow it, each at most twice in a row."""


class Behind(Protocol):
    """Function to the tokens behind a stand-in's answer."""

    def __call__(
        self,
        before: Sequence[Message],
        calls: Sequence[Any],
        messages: Sequence[Message],
        tools: Sequence[Any],
    ) -> list[int]:
        """Return them, for an answer with ``calls`` between ``before`` and ``messages``.

        Raises:
            DataError: the template refuses this conversation.
        """


class ShortHistories:
    """Finder of the messages that have to be rendered before an answer.

    Args:
        behind: renders a conversation; asked once for each of a few conversations and shapes.
    """

    def __init__(self, behind: Behind) -> None:
        self._behind = behind
        self._proved: dict[TurnShape, bool] = {}

    def shortened(
        self,
        before: Sequence[Message],
        calls: Sequence[Any],
        messages: Sequence[Message],
        tools: Sequence[Any],
    ) -> Sequence[Message] | None:
        """Return messages that stand for all of those before an answer; None: the template may look at every one.

        Args:
            calls: calls of the answer.
            messages: what follows it.
        """
        num_head = int(bool(before) and before[0].get("role") in _HEAD_ROLES)
        if len(before) <= num_head + 1:
            return before
        if not _is_ordinary(before[num_head:], messages):
            return None
        shape = TurnShape(
            has_system=bool(num_head),
            has_tools=bool(tools),
            num_calls=min(len(calls), _MOST_ALIKE),
            roles=_short_roles(messages),
        )
        if shape not in self._proved:
            self._proved[shape] = self._is_the_same(shape)
        return (*before[:num_head], USER) if self._proved[shape] else None

    def _is_the_same(self, shape: TurnShape) -> bool:
        """Return whether the template writes the same behind an answer in all of the conversations."""
        head = (_SYSTEM,) if shape.has_system else ()
        calls = [_call(number) for number in range(shape.num_calls)]
        messages = [_message(role, number) for number, role in enumerate(shape.roles)]
        tools = _TOOLS if shape.has_tools else ()
        short = self._tokens((*head, USER), calls, messages, tools)
        with_tools = bool(calls) or "tool" in shape.roles or shape.has_tools
        for history in _histories(with_tools):
            before = (*head, *history)
            # A conversation that the template refuses as it is comes up in no run.
            is_possible = self._tokens(before, (), (), tools) is not None
            if is_possible and self._tokens(before, calls, messages, tools) != short:
                return False
        return True

    def _tokens(self, *conversation: Any) -> list[int] | None:
        with suppress(DataError):
            return self._behind(*conversation)
        return None


def _is_ordinary(before: Sequence[Message], messages: Sequence[Message]) -> bool:
    """Return whether a conversation is of the kind that is tried: known roles, and texts where it goes on."""
    return all(message.get("role") in _TURN_ROLES for message in before) and all(
        message.get("role") in _FOLLOWING_ROLES and isinstance(message.get("content"), str)
        for message in messages
    )


def _short_roles(messages: Sequence[Message]) -> tuple[str, ...]:
    runs = groupby(message["role"] for message in messages)
    return tuple(role for role, run in runs for role in list(run)[:_MOST_ALIKE])


def _histories(with_tools: bool) -> Iterator[tuple[Message, ...]]:
    """Yield conversations through the message before an answer: few and many turns, thoughts, calls of tools."""
    for answer in (_ANSWER, _THOUGHT, _TAGGED):
        yield (USER, answer, USER)
    for num_turns in (2, 3, 7, 40):
        yield (*(USER, _ANSWER) * num_turns, USER)
    if with_tools:
        cycle = (_called(_ANSWER), _message("tool", 0))
        yield (USER, *cycle)
        yield (USER, *cycle, _ANSWER, USER)
        yield (USER, _ANSWER, USER, *cycle * 3)
        yield (USER, _called(_THOUGHT), _message("tool", 0), *cycle * 20)


def _called(answer: Message) -> Message:
    return {**answer, "tool_calls": [_call(0)]}


def _call(number: int) -> dict[str, Any]:
    function = {"name": "look", "arguments": {"at": "it"}}
    return {"id": f"call{number:05}", "type": "function", "function": function}


def _message(role: str, number: int) -> Message:
    more = {"name": "look", "tool_call_id": f"call{number:05}"} if role == "tool" else {}
    return {"role": role, "content": "Sure?", **more}
