"""Tool calls of DeepSeek: a name and JSON between marks of their own, in a code block in the older form."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlhf_core.contracts.environment import ToolCall

from .json_calls import call_of
from .pieces import CallsRead, Piece

BEGIN, END, SEPARATOR, ALL_BEGIN, ALL_END = (
    f"<\uff5ctool▁{name}\uff5c>"
    for name in ("call▁begin", "call▁end", "sep", "calls▁begin", "calls▁end")
)

_FENCE = re.compile(
    r"\s*(?P<name>[^\n`]+?)\s*\n```(?:json)?\n(?P<arguments>.*?)\n?```\s*", flags=re.DOTALL
)


def read_deepseek(pieces: Sequence[Piece]) -> CallsRead:
    read = CallsRead.empty()
    parts: list[str] | None = None
    for piece in pieces:
        if not piece.is_mark:
            if parts is None:
                read.content.append(piece.text)
            else:
                parts[-1] += piece.text
        elif piece.text == BEGIN:
            if parts is not None:
                read.malformed.append("a tool call begins before the one before it has ended")
            parts = [""]
        elif piece.text == SEPARATOR and parts is not None:
            parts.append("")
        elif piece.text == END and parts is not None:
            read.add(_call(parts, f"call_{len(read.calls)}"))
            parts = None
        elif piece.text not in (ALL_BEGIN, ALL_END):
            read.malformed.append(f"{piece.text} stands outside of a tool call")
    if parts is not None:
        read.malformed.append("the last tool call has no end")
    if read.calls or read.malformed:
        read.content = ["".join(read.content).strip()]
    return read


def _call(parts: Sequence[str], identity: str) -> ToolCall | str:
    if len(parts) != 2:
        return f"expected one separator in a tool call, got {len(parts) - 1}"
    fenced = _FENCE.fullmatch(parts[1])
    if (
        fenced is not None
    ):  # the older form: type, separator, name, and the arguments as a code block
        return call_of(fenced["name"], fenced["arguments"], identity)
    if not parts[0].strip():
        return "expected the name of a function before the separator, got none"
    return call_of(parts[0].strip(), parts[1], identity)
