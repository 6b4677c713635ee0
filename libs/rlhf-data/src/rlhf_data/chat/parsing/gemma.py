"""Tool calls of Gemma 4: ``call:NAME{key:value}`` between marks, with texts between marks of their own; and the marks
of its thoughts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from rlhf_core.contracts.environment import ToolCall

from .json_calls import call_of
from .pieces import CallsRead, Piece, calls_between

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
CHANNEL, CHANNEL_END = "<|channel>", "<channel|>"

_CALL = re.compile(r"\s*call:([^\s{}]+)\s*(\{.*\})\s*", flags=re.DOTALL)
_KEY = re.compile(r"([{,]\s*)([\w.$-]+)(\s*:)")


def read_gemma(pieces: Sequence[Piece]) -> CallsRead:
    """Return the calls between ``<|tool_call>`` and ``<tool_call|>``."""
    return calls_between(pieces, OPEN, CLOSE, lambda inside, number: [_call(inside, number)])


def _call(pieces: Sequence[Piece], number: int) -> ToolCall | str:
    """Return the call in some pieces, whose arguments become JSON; a reason if they are none."""
    written, quoted = "", None
    for piece in pieces:
        if piece.is_mark and piece.text == QUOTE:
            written, quoted = (
                (written, "") if quoted is None else (written + json.dumps(quoted), None)
            )
        elif quoted is None:
            written += _KEY.sub(r'\1"\2"\3', piece.text)
        else:
            quoted += piece.text
    found = _CALL.fullmatch(written)
    if found is None or quoted is not None:
        return f"expected call:NAME{{...}} with texts between {QUOTE}, got {written[:80]!r}"
    return call_of(found[1], found[2], f"call_{number}")
