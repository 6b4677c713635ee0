"""Frames of the wire: a length of four bytes (big-endian), then as many bytes of JSON, one message in each.

A frame that is too long, nested too deeply or no JSON object is an error for whoever wants to send it, and the end of
the connection for whoever receives it: what follows cannot be trusted.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any

from ..processes import marked_json

MAX_FRAME_BYTES = 64 * 2**20
"""Largest number of bytes of a message."""
MAX_DEPTH = 100
"""Largest number of lists and dicts within each other."""

_LENGTH = struct.Struct(">I")


class FrameError(ValueError):
    """A message that cannot be sent, or bytes that are none."""


def packed(message: Mapping[str, Any]) -> bytes:
    """Return the message as a frame.

    Raises:
        FrameError: it is too long, too deep, or holds a value that JSON cannot; the text is a predicate.
    """
    try:
        body = marked_json.encode(message)
    except TypeError as error:
        raise FrameError(
            f"holds a {error}, which cannot be sent; expected text, numbers, booleans, lists, dicts, bytes or dates"
        ) from error
    except (ValueError, RecursionError) as error:
        raise FrameError(f"cannot be sent as JSON: {error}") from error
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"has {len(body):,} bytes; expected at most {MAX_FRAME_BYTES:,}")
    if _is_too_deep(body, message):
        raise FrameError(f"is nested more than {MAX_DEPTH} levels deep")
    return _LENGTH.pack(len(body)) + body


async def read_frame(
    reader: asyncio.StreamReader, limit: int = MAX_FRAME_BYTES
) -> dict[str, Any] | None:
    """Return the next message; None when the other side has closed the connection between two of them.

    Raises:
        FrameError: the bytes are no frame.
        EOFError: the connection ended within a frame.
        OSError: the connection broke.
    """
    try:
        head = await reader.readexactly(_LENGTH.size)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    (length,) = _LENGTH.unpack(head)
    if length > limit:
        raise FrameError(f"a frame of {length:,} bytes; expected at most {limit:,}")
    return unpacked(await reader.readexactly(length))


def unpacked(body: bytes) -> dict[str, Any]:
    """Return the message of a frame's body.

    Raises:
        FrameError: it is none.
    """
    try:
        message: Any = marked_json.decode(body)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FrameError(f"a frame that is no message ({type(error).__name__}: {error})") from error
    if not isinstance(message, dict):
        raise FrameError(f"a frame with a {type(message).__name__}; expected an object")
    if _is_too_deep(body, message):
        raise FrameError(f"a frame that is nested more than {MAX_DEPTH} levels deep")
    return message


def _is_too_deep(body: bytes, message: Any) -> bool:
    # Most messages have few brackets, text included; only the others are walked through.
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    level = [message]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, Mapping) else value)
            if isinstance(inner, list | tuple | Mapping)
        ]
        if not level:
            return False
    return True
