"""Places of images among tokens: from the one marker that a chat template writes to all tokens of an image.

Expansion happens once, here, whoever generates. What was expanded is sampled from, sent on and trained; engines and
trainers compare it with what their own processing of the pixels gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol, cast

from .problem import MediaProblem
from .processor_text import ProcessorText
from .reference import MediaRef


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpan:
    """An image and its tokens in a sequence; frames of a video that a model sees as one stand on the same tokens."""

    start: int
    """Index of the image's first token."""
    length: int
    """Number of its tokens."""
    image: MediaRef
    """Reference to the image."""

    @property
    def end(self) -> int:
        """Index after the image's last token."""
        return self.start + self.length


def seen_together(spans: Sequence[MediaSpan]) -> Iterator[tuple[MediaSpan, tuple[MediaRef, ...]]]:
    """Yield the first span on each place among tokens, with all images that a model sees there as one."""

    def place(span: MediaSpan) -> tuple[int, int, int]:
        return span.start, span.length, 0 if span.image.frame is not None else id(span)

    for _, group in groupby(spans, key=place):
        first, *others = group
        yield first, (first.image, *(span.image for span in others))


class ImageTokens(Protocol):
    """A model's way to write images as tokens: all that is known of it where no pixel is processed.

    One whose sequences may not have any number of images has ``check_count(count)``, which raises a ``MediaProblem``.
    """

    @property
    def marker_id(self) -> int:
        """The token that the chat template writes for each image."""

    @property
    def never_sampled(self) -> tuple[int, ...]:
        """Tokens that stand for images and other media, which a policy must never write."""

    @property
    def writing(self) -> ProcessorText:
        """Text and tokens that the model's processor writes into a conversation beside the chat template."""

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        """Return the tokens that take the marker's place, by the image's size and the limits on its area alone.

        Raises:
            MediaProblem: the model cannot read an image of this size, or within these limits.
        """


class FrameTokens(ImageTokens, Protocol):
    """The way of a model that reads frames of videos too."""

    @property
    def video_marker_id(self) -> int:
        """The token that the chat template writes for each video, and on which features of frames stand."""

    @property
    def frames_together(self) -> int:
        """Number of frames that the model sees as one; of the last ones there may be fewer."""

    def tokens_of_frames(self, frames: Sequence[MediaRef]) -> Sequence[tuple[int, ...]]:
        """Return the tokens of each ``frames_together`` frames of a video, which together take the marker's place.

        Raises:
            MediaProblem: the model cannot read frames of this size, within these limits, or at these times.
        """


class Expanded(NamedTuple):
    """Tokens in which images have all of theirs."""

    token_ids: tuple[int, ...]
    """All tokens."""
    spans: tuple[MediaSpan, ...]
    """Places of the images, in their order."""


def expanded(token_ids: Sequence[int], images: Sequence[MediaRef], tokens: ImageTokens) -> Expanded:
    """Return the tokens with each marker replaced by the tokens of its image, or of all frames of its video, in order.

    Raises:
        MediaProblem: there are more or fewer markers than images and videos, or an image cannot be read.
    """
    check_frames(images, tokens)
    shown = as_shown(images)
    markers = {getattr(tokens, "video_marker_id", None): True, tokens.marker_id: False}
    places = [place for place, token in enumerate(token_ids) if token in markers]
    if [markers[token_ids[at]] for at in places] != [one[0].frame is not None for one in shown]:
        raise MediaProblem(
            "images and places differ",
            f"there are {len(shown)} images and {len(places)} places for them among the tokens; expected as many of "
            "one as of the other, from a chat template that writes one for each image and each video, in order",
        )
    whole: list[int] = []
    spans: list[MediaSpan] = []
    behind = 0
    for place, seen in zip(places, shown, strict=True):
        whole.extend(token_ids[behind:place])
        for own, together in _written(seen, tokens):
            spans += [MediaSpan(start=len(whole), length=len(own), image=one) for one in together]
            whole.extend(own)
        behind = place + 1
    whole.extend(token_ids[behind:])
    return Expanded(tuple(whole), tuple(spans))


def as_shown(images: Sequence[MediaRef]) -> list[tuple[MediaRef, ...]]:
    """Return images each alone, and the frames of a video together."""
    shown: list[tuple[MediaRef, ...]] = []
    for image in images:
        if shown and image.frame is not None and image.frame.index:
            shown[-1] += (image,)
        else:
            shown.append((image,))
    return shown


def check_frames(images: Sequence[MediaRef], tokens: ImageTokens) -> None:
    """Refuse frames of a video for a model that reads single images alone.

    Raises:
        MediaProblem: there is one.
    """
    if any(image.frame is not None for image in images) and not hasattr(tokens, "tokens_of_frames"):
        raise MediaProblem(
            "video for a model of images",
            "there are frames of a video, and the model reads single images alone; choose a model that reads videos "
            "(--model), or give the frames as images, which have no time",
        )


def _written(
    seen: tuple[MediaRef, ...], tokens: ImageTokens
) -> Iterator[tuple[tuple[int, ...], tuple[MediaRef, ...]]]:
    """Yield the tokens of an image with it, or those of a video's frames with the frames that stand on them."""
    if seen[0].frame is None:
        yield tokens.tokens_of(seen[0]), seen
        return
    of_frames = cast(FrameTokens, tokens)  # ``check_frames`` looked
    for number, own in enumerate(of_frames.tokens_of_frames(seen)):
        first = number * of_frames.frames_together
        yield own, seen[first : first + of_frames.frames_together]


def collapsed(token_ids: Sequence[int], spans: Sequence[MediaSpan], marker_id: int) -> list[int]:
    """Return tokens that ``expanded`` gave with one marker for each image again, for an engine that expands itself; the
    images are no frames of videos."""
    short: list[int] = []
    behind = 0
    for span in spans:
        short += [*token_ids[behind : span.start], marker_id]
        behind = span.end
    return [*short, *token_ids[behind:]]
