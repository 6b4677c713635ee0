"""Tokens of families that see each image at one size, whatever its own."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.media import MediaRef


class EqualTokens:
    """Implements ``rlhf_core.media.ImageTokens``: the same tokens for each image.

    Args:
        marker_id: the token that the chat template writes for an image.
        own: the tokens that take its place.
        never_sampled: tokens that a policy must never write.
    """

    def __init__(self, marker_id: int, own: Sequence[int], never_sampled: tuple[int, ...]) -> None:
        self.marker_id = marker_id
        self.never_sampled = never_sampled
        self._own = tuple(own)

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        """Return the tokens of an image."""
        return self._own
