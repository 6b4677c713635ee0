"""Tool calls of Llama 3: an answer that is JSON, or what stands behind ``<|python_tag|>``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .json_calls import objects_in, read_call
from .pieces import CallsRead, Piece, text_of

TAG = "<|python_tag|>"


def read_llama(pieces: Sequence[Piece]) -> CallsRead:
    """Return the calls of an answer; JSON objects with a name are calls also without the tag."""
    read = CallsRead.empty()
    tags = [place for place, piece in enumerate(pieces) if piece.is_mark and piece.text == TAG]
    before = pieces[: tags[0]] if tags else pieces
    text = text_of(before)
    if not tags:
        if not _begins_a_call(text):
            read.content.append(text)
            return read
        _read(text, read)
        return read
    read.content.append(text)
    for start, end in pairwise([*tags, len(pieces)]):
        _read(text_of(pieces[start + 1 : end]), read)
    return read


def _begins_a_call(text: str) -> bool:
    start = text.lstrip()
    return (
        start.startswith("{")
        and '"name"' in start
        and ('"parameters"' in start or '"arguments"' in start)
    )


def _read(text: str, read: CallsRead) -> None:
    try:
        written = list(objects_in(text))
    except (ValueError, RecursionError) as error:
        read.malformed.append(
            f"expected JSON objects with name and parameters, got {text[:80]!r}: {error}"
        )
        return
    for one in written:
        read.add(read_call(one, len(read.calls)))
