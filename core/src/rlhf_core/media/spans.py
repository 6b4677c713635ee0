"""Places of images among tokens: from the one marker that a chat template writes to all tokens of an image.

Expansion happens once, here, whoever generates. What was expanded is sampled from, sent on and trained; engines and
trainers compare it with what their own processing of the pixels gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .problem import MediaProblem
from .processor_text import ProcessorText
from .reference import MediaRef


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpan:
    """An image and its tokens in a sequence."""

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


class ImageTokens(Protocol):
    """A model's way to write images as tokens: all that is known of it where no pixel is processed.

    One whose sequences may not have any number of images has ``check_count(count)``, which raises a ``MediaProblem``.
    """

    @property
    def marker_id(self) -> int:
        """The token that the chat template writes for each image."""
        ...

    @property
    def never_sampled(self) -> tuple[int, ...]:
        """Tokens that stand for images and the like, which a policy must never write."""
        ...

    @property
    def writing(self) -> ProcessorText:
        """Text and tokens that the model's processor writes into a conversation beside the chat template."""
        ...

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        """Return the tokens that take the marker's place, by the image's size and the limits on its area alone.

        Raises:
            MediaProblem: the model cannot read an image of this size, or within these limits.
        """
        ...


class Expanded(NamedTuple):
    """Tokens in which images have all of theirs."""

    token_ids: tuple[int, ...]
    """All tokens."""
    spans: tuple[MediaSpan, ...]
    """Places of the images, in their order."""


def expanded(token_ids: Sequence[int], images: Sequence[MediaRef], tokens: ImageTokens) -> Expanded:
    """Return the tokens with each marker replaced by the tokens of its image, in order.

    Raises:
        MediaProblem: there are more or fewer markers than images, or an image cannot be read.
    """
    marker = tokens.marker_id
    places = [place for place, token in enumerate(token_ids) if token == marker]
    if len(places) != len(images):
        raise MediaProblem(
            "images and places differ",
            f"there are {len(images)} images and {len(places)} places for them among the tokens; expected as many of "
            "one as of the other, from a chat template that writes one for each image",
        )
    whole: list[int] = []
    spans: list[MediaSpan] = []
    behind = 0
    for place, image in zip(places, images, strict=True):
        whole.extend(token_ids[behind:place])
        own = tokens.tokens_of(image)
        spans.append(MediaSpan(start=len(whole), length=len(own), image=image))
        whole.extend(own)
        behind = place + 1
    whole.extend(token_ids[behind:])
    return Expanded(tuple(whole), tuple(spans))


def collapsed(token_ids: Sequence[int], spans: Sequence[MediaSpan], marker_id: int) -> list[int]:
    """Return tokens that ``expanded`` gave with one marker for each image again, for an engine that expands itself."""
    short: list[int] = []
    behind = 0
    for span in spans:
        short += [*token_ids[behind : span.start], marker_id]
        behind = span.end
    return [*short, *token_ids[behind:]]
