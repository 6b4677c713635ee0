"""Answers in gpt-oss's form (Harmony): messages in channels, of which ``analysis`` is the thought, and calls are those
with a recipient, such as ``to=functions.add``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlhf_core.contracts.environment import ToolCall

from .json_calls import call_of
from .pieces import CallsRead, Piece

START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN = (
    f"<|{word}|>" for word in ("start", "channel", "constrain", "message", "end", "call", "return")
)

_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


class _Written(NamedTuple):
    """A message of an answer."""

    header: str
    """Role, recipient, channel and type of the content, marks included."""
    body: str | None
    """None: no ``<|message|>`` follows the header."""
    ended: bool

    @property
    def is_thought(self) -> bool:
        """Whether it is for nobody, in the channel of thoughts."""
        channel = _CHANNEL.search(self.header)
        return self.recipient is None and channel is not None and channel[1] == "analysis"

    @property
    def recipient(self) -> str | None:
        """Name of the function that is called; None: it is no call."""
        found = _RECIPIENT.search(self.header)
        return None if found is None else found[1].removeprefix("functions.")


def read_harmony(pieces: Sequence[Piece]) -> tuple[str | None, CallsRead, bool]:
    """Return the thought (None: there is no message), content and calls, and whether the thought has no end.

    The role of the first message, and ``<|start|>`` before it, are the prompt's. Content is what stands in ``final``,
    in ``commentary`` without a recipient, or in no channel.
    """
    read, thoughts, is_open = CallsRead.empty(), list[str](), False
    for one in _messages(pieces):
        is_open = one.is_thought and not one.ended
        if one.recipient is not None:
            read.add(_call(one.recipient, one.body, len(read.calls)))
        elif one.is_thought:
            thoughts.append(one.body or "")
        elif one.body is not None:
            read.content.append(one.body)
        elif CHANNEL not in one.header:
            read.content.append(one.header)  # text without any mark
    is_marked = any(piece.is_mark and piece.text in (CHANNEL, MESSAGE) for piece in pieces)
    return "\n".join(thoughts) if is_marked else None, read, is_open and not read.calls


def _call(name: str, body: str | None, number: int) -> ToolCall | str:
    if body is None:
        return f"{name}: expected {MESSAGE} and arguments, got none"
    return call_of(name, body, f"call_{number}")


def _messages(pieces: Sequence[Piece]) -> Iterator[_Written]:
    header, body = "", None
    for piece in pieces:
        mark = piece.text if piece.is_mark else None
        if mark in (END, CALL, RETURN, START):
            if header or body is not None:
                yield _Written(header, body, ended=mark != START)
            header, body = "", None
        elif mark == MESSAGE and body is None:
            body = ""
        elif body is None:
            header += piece.text
        else:
            body += piece.text
    if header or body is not None:
        yield _Written(header, body, ended=False)
