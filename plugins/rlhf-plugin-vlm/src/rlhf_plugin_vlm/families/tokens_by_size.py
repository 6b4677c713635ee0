"""Tokens of families that choose the size at which they see an image by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlhf_core.media import MediaProblem, MediaRef, ProcessorText

from .loading import ONE_SIZE


class TokensBySize:
    """Implements ``rlhf_core.media.ImageTokens``: an image's tokens by its own size, which no limit changes.

    Args:
        marker_id: the token that the chat template writes for an image.
        own: returns the tokens that take its place, from height and width in pixels.
        never_sampled: tokens that a policy must never write.
        writing: what the processor writes into conversations.
        sees: at what sizes the model sees images, for messages.
    """

    def __init__(
        self,
        marker_id: int,
        own: Callable[[int, int], Sequence[int]],
        never_sampled: tuple[int, ...],
        writing: ProcessorText,
        *,
        sees: str = ONE_SIZE,
    ) -> None:
        self.no_second: str | None = None
        """Why a sequence may not have a second image, and the way out; None: it may."""
        self.marker_id = marker_id
        self.never_sampled = never_sampled
        self.writing = writing
        self._own = own
        self._sees = sees

    def check_count(self, count: int) -> None:
        """Refuse a second image of a sequence where the model would see the first one otherwise beside it.

        Raises:
            MediaProblem: there is one.
        """
        if count > 1 and self.no_second is not None:
            raise MediaProblem("several images", f"there are {count} images; {self.no_second}")

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        """Return the tokens of an image, by its size alone.

        Raises:
            MediaProblem: the image has limits on its area, which nothing could follow, or none of its pixels would be
                left at the size at which the model sees it.
        """
        if image.limits:
            raise MediaProblem(
                "limit of an image's area",
                f"the model {self._sees}, so {' and '.join(image.limits.fields())} cannot be obeyed; "
                "leave it out of rows, of images and of --data",
            )
        own = tuple(self._own(image.height, image.width))
        if not own:
            raise MediaProblem(
                "size of an image",
                f"the model's processor cannot read an image of {image.width} x {image.height} pixels, of which it "
                "leaves nothing; expected one that is less narrow",
            )
        return own
