"""Text of environments on a terminal, which must not take control of it."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def plain(text: str) -> str:
    """Return a text with its control characters, and halves of surrogate pairs, as escapes."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
