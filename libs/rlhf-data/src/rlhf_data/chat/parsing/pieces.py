"""Token ids of an answer as pieces: marks, and the texts between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_core.contracts.environment import ToolCall


class Piece(NamedTuple):
    """A mark, or a text between marks."""

    text: str
    is_mark: bool = False


@dataclass(slots=True)
class CallsRead:
    """Tool calls of an answer, and the text beside them."""

    content: list[str]
    """Texts that belong to no call."""
    calls: list[ToolCall]
    """Well-formed calls, in order."""
    malformed: list[str]
    """A reason for each place where a call was begun and is none."""

    @classmethod
    def empty(cls) -> CallsRead:
        """Return one without anything."""
        return cls([], [], [])

    def add(self, read: ToolCall | str) -> None:
        """Add a call, or the reason why the text is not a call."""
        (self.calls if isinstance(read, ToolCall) else self.malformed).append(read)  # type: ignore[arg-type]


def calls_between(
    pieces: Sequence[Piece],
    begin: str,
    end: str,
    read_calls: Callable[[list[Piece], int], Iterable[ToolCall | str]],
) -> CallsRead:
    """Return the calls between an opening and a closing mark, and what stands beside them as content.

    Args:
        read_calls: from the pieces between the marks, and the number of calls before them, to calls, or the reasons why
            they are none.
    """
    read = CallsRead.empty()
    inside: list[Piece] | None = None
    for piece in pieces:
        mark = piece.text if piece.is_mark else None
        if mark == begin:
            if inside is not None:
                read.malformed.append("a tool call begins before the one before it has ended")
            inside = []
        elif mark == end:
            if inside is None:
                read.malformed.append("a tool call ends that has not begun")
            else:
                for one in read_calls(inside, len(read.calls)):
                    read.add(one)
            inside = None
        elif inside is None:
            read.content.append(piece.text)
        else:
            inside.append(piece)
    if inside is not None:
        read.malformed.append("the last tool call has no end")
    return read


def text_of(pieces: Iterable[Piece]) -> str:
    """Return the text of some pieces, marks included."""
    return "".join(piece.text for piece in pieces)


def pieces_of(
    token_ids: Sequence[int],
    marks: Mapping[int, str],
    spelled: Sequence[str],
    decode: Callable[[Sequence[int]], str],
) -> list[Piece]:
    """Return the pieces of an answer.

    Args:
        marks: token ids that are marks.
        spelled: marks that are no tokens of the tokenizer, so that the policy writes them as text.
    """
    pieces: list[Piece] = []
    start = 0
    for place, token in enumerate(token_ids):
        if token in marks:
            pieces += _split(decode(token_ids[start:place]) if place > start else "", spelled)
            pieces.append(Piece(marks[token], is_mark=True))
            start = place + 1
    if start < len(token_ids):
        pieces += _split(decode(token_ids[start:]), spelled)
    return pieces


def _split(text: str, spelled: Sequence[str]) -> list[Piece]:
    if not text:
        return []
    if not spelled:
        return [Piece(text)]
    parts = re.split("(" + "|".join(map(re.escape, spelled)) + ")", text)
    return [Piece(part, is_mark=number % 2 == 1) for number, part in enumerate(parts) if part]
