"""Tool calls of Mistral: a list of JSON objects behind ``[TOOL_CALLS]``, or a name and ``[ARGS]`` behind each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .json_calls import call_of, objects_in, read_call
from .pieces import CallsRead, Piece, text_of

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def read_mistral(pieces: Sequence[Piece]) -> CallsRead:
    read = CallsRead.empty()
    starts = [place for place, piece in enumerate(pieces) if piece.is_mark and piece.text == CALLS]
    read.content += [piece.text for piece in pieces[: starts[0] if starts else None]]
    for start, end in pairwise([*starts, len(pieces)]):
        block = pieces[start + 1 : end]
        if any(piece.is_mark for piece in block):
            _read_named(block, read)
        else:
            _read_list(text_of(block), read)
    return read


def _read_list(text: str, read: CallsRead) -> None:
    try:
        written = list(objects_in(text))
    except (ValueError, RecursionError) as error:
        read.malformed.append(f"expected a list of JSON objects, got {text[:80]!r}: {error}")
        return
    if not written:
        read.malformed.append("expected a list of JSON objects, got none")
    for one in written:
        read.add(read_call(one, len(read.calls)))


def _read_named(block: Sequence[Piece], read: CallsRead) -> None:
    """Read ``name[CALL_ID]id[ARGS]{...}``, of which the id may be missing."""
    parts = {"": ""}
    current = ""
    for piece in block:
        if not piece.is_mark:
            parts[current] += piece.text
        elif piece.text in parts:
            read.malformed.append(f"{parts[''].strip()}: {piece.text} stands there twice")
            return
        else:
            current = piece.text
            parts[current] = ""
    name = parts[""].strip()
    if not name or ARGS not in parts:
        read.malformed.append(f"expected a name and {ARGS}, got {text_of(block)[:80]!r}")
        return
    identity = parts.get(CALL_ID, "").strip() or f"call_{len(read.calls)}"
    read.add(call_of(name, parts[ARGS], identity))
