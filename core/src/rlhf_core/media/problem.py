"""The problem of one image, which its user words with the image's place: a row, or an episode's turn."""

from __future__ import annotations


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
