"""The problem of one image, which its user words with the image's place: a row, or an episode's turn."""

from __future__ import annotations

SHOWN_CHARACTERS = 120
"""Characters of a value that a message repeats: an image as text may have millions."""


class MediaProblem(ValueError):
    """An image that cannot be used.

    Args:
        kind: a few words that are the same for all images with this sort of problem.
        reason: the expected value, the actual value, and the fix.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def shown(value: object) -> str:
    """Return a value for a message: its first characters, and how many it has if there are more."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]}... ({len(text)} characters)"
