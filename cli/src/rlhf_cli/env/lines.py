"""Lines of the standard input, read without stopping the event loop, and left at once by Ctrl-C."""

from __future__ import annotations

import asyncio
import io
import os
import select
import sys

_LOOK_S = 0.2
"""Seconds for which a thread looks for input; Ctrl-C waits for it to end."""
_CHUNK = 65_536


class InputLines:
    """The lines of the standard input."""

    def __init__(self) -> None:
        self._left = b""
        self._ended = False
        try:
            self._descriptor: int | None = sys.stdin.fileno()
        except (AttributeError, io.UnsupportedOperation):
            self._descriptor = None  # A test's own, which never waits.

    async def next(self) -> str | None:
        """Return the next line, without its end; None at the end of the input."""
        if self._descriptor is None:
            line: str = sys.stdin.readline()
            return line.rstrip("\r\n") if line else None
        while b"\n" not in self._left and not self._ended:
            await self._read(self._descriptor)
        if not self._left:
            return None
        line_bytes, _, self._left = self._left.partition(b"\n")
        return line_bytes.decode("utf-8", errors="replace").rstrip("\r")

    async def _read(self, descriptor: int) -> None:
        ready, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], _LOOK_S)
        if ready:
            found = os.read(descriptor, _CHUNK)
            self._left += found
            self._ended = not found
