"""Rows whose roles do not alternate.

A template that refuses such messages makes bad rows of them. Others write them, which people use on purpose; but as
often an answer was lost on the way. So they are read as they are, and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_core.batch.task import Message

from .rows import SHOWN

_HEAD_ROLES = ("system", "developer")


def out_of_turn(messages: Sequence[Message]) -> str | None:
    """Return which message is the first out of turn, and why; None: the roles alternate.

    Messages of the system stand anywhere, results of tools behind calls or each other, and of a role that is not known
    nothing is said.
    """
    before: Message = {}
    for number, message in enumerate(messages, start=1):
        role = message["role"]
        if role in _HEAD_ROLES:
            continue
        what = f"message {number} ({role})"
        last = before.get("role")
        if role in ("user", "assistant") and role == last:
            return f"{what} follows another message of the {role}"
        if role == "assistant" and last is None:
            return f"{what} has no message of the user before it"
        if role == "tool" and last != "tool" and not before.get("tool_calls"):
            return f"{what} has no call before it"
        before = message
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOrder:
    """Count of the rows whose roles do not alternate."""

    rows: int = 0
    shown: tuple[str, ...] = ()
    """The first of them: place, message and reason."""

    def plus(self, reason: str | None, where: str) -> TurnOrder:
        """Return the count with one more row, if it has a message out of turn."""
        if reason is None:
            return self
        return self.joined(TurnOrder(rows=1, shown=(f"{where}: {reason}",)))

    def joined(self, other: TurnOrder) -> TurnOrder:
        """Return the count of both."""
        return TurnOrder(rows=self.rows + other.rows, shown=(*self.shown, *other.shown)[:SHOWN])

    def describe(self, total: int, option: str) -> str:
        """Return the caution for people: the rows, what becomes of them, and what to do if they are not meant so."""
        lines = [
            f"{option}: the roles of {self.rows} of {total} rows do not alternate. They are read as they are, where "
            "the chat template writes them:",
            *(f"  {one}" for one in self.shown),
        ]
        if hidden := self.rows - len(self.shown):
            lines.append(f"  and {hidden} more")
        lines.append("  Where a message was lost, put it in or leave the row out.")
        return "\n".join(lines)
