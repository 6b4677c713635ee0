"""Chunks of the page: JSON that the page unpacks when it is looked at, as base64 of gzip, within a limit of bytes."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterator
from typing import Any

_LEVEL = 5
"""Level of gzip: 3 times faster than the best one, for a few percent of size."""

_TEXTS = 0.8
"""Share of the limit that texts, tokens and images may take together."""


class Chunks:
    """Parts of the page that are not read at its start.

    Args:
        limit: largest number of bytes of all parts together, as they are in the file.
    """

    def __init__(self, limit: int) -> None:
        self.num_bytes = 0
        self._limit = limit
        self._parts: list[tuple[str, bytes]] = []

    def add(self, value: object, *, spare: bool = False) -> str | None:
        """Add a value of JSON, and return the name of its part; None: there is no room for it.

        Args:
            spare: leave room for what says of which texts there are: a table is worth more than one more text.
        """
        packed = gzip.compress(to_json(value).encode(), _LEVEL, mtime=0)
        return self._add("c", packed, self._limit * (_TEXTS if spare else 1))

    def add_bytes(self, data: bytes) -> str | None:
        """Add bytes that are packed already, such as an image; else as ``add`` with ``spare``."""
        return self._add("b", data, self._limit * _TEXTS)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name of each part, and its base64."""
        return iter(self._parts)

    def _add(self, kind: str, data: bytes, limit: float) -> str | None:
        packed = base64.b64encode(data)
        if self.num_bytes + len(packed) > limit:
            return None
        self.num_bytes += len(packed)
        name = f"{kind}{len(self._parts)}"
        self._parts.append((name, packed))
        return name


def to_json(value: object) -> str:
    """Return a value as JSON in ASCII, in which a browser finds neither markup nor an end of a line.

    ``<``, ``>`` and ``&`` are escaped, so that no text of a rollout ends the element that holds it; U+2028 and U+2029
    are escaped as all characters beyond ASCII are.

    Raises:
        ValueError: a number is NaN or infinite, which JSON does not have.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def number_of(value: Any) -> float | None:
    """Return a number with six digits, as small as JSON has it; None: it is none, or is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(f"{float(value):.6g}")
    except OverflowError:
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 1e15 else number
