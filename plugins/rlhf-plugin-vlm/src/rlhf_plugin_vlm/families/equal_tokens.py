"""Tokens of families that see each image at one size, whatever its own."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.media import MediaProblem, MediaRef, ProcessorText


class EqualTokens:
    """Implements ``rlhf_core.media.ImageTokens``: the same tokens for each image.

    Args:
        marker_id: the token that the chat template writes for an image.
        own: the tokens that take its place.
        never_sampled: tokens that a policy must never write.
        writing: what the processor writes into conversations.
    """

    def __init__(
        self,
        marker_id: int,
        own: Sequence[int],
        never_sampled: tuple[int, ...],
        writing: ProcessorText,
    ) -> None:
        self.marker_id = marker_id
        self.never_sampled = never_sampled
        self.writing = writing
        self._own = tuple(own)

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        """Return the tokens of an image.

        Raises:
            MediaProblem: the image has limits on its area, which nothing could follow.
        """
        if image.limits:
            raise MediaProblem(
                "limit of an image's area",
                f"the model sees all images at one size, so {' and '.join(image.limits.fields())} cannot be obeyed; "
                "leave it out of rows, of images and of --data",
            )
        return self._own
