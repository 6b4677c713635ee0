"""Images of prompts and observations, for a model that sees: taken in, and given their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .desk import MediaDesk
from .parts import image_parts
from .problem import MediaProblem
from .reference import MediaRef
from .spans import Expanded, ImageTokens, expanded

Message = Mapping[str, Any]


class ImageReader:
    """Reader of a run's images, before an engine gets them.

    Args:
        desk: takes images into the run's store.
        tokens: how the model writes images.
        key: column of a row with its images, beside its messages; None: there is none.
    """

    def __init__(self, desk: MediaDesk, tokens: ImageTokens, key: str | None = None) -> None:
        self.desk = desk
        self.tokens = tokens
        self.key = key

    def messages(
        self, messages: Sequence[Message], images: Sequence[Any] = (), folder: Path | None = None
    ) -> tuple[Message, ...]:
        """Return messages whose images are references; see ``MediaDesk.messages``."""
        return self.desk.messages(messages, images, folder)

    def expand(self, token_ids: Sequence[int], images: Sequence[MediaRef]) -> Expanded:
        """Return a sequence with all tokens of its images.

        Args:
            token_ids: tokens with one marker for each image, as the chat template writes them.

        Raises:
            MediaProblem: there are too many images, more or fewer than markers, or one of a size that the model cannot
                read.
        """
        self.desk.limits.check_count(len(images))
        return expanded(token_ids, images, self.tokens)


def without_images(messages: Sequence[Message]) -> None:
    """Refuse images in messages for a model that reads none.

    Raises:
        MediaProblem: there is one.
    """
    if any(image_parts(messages)):
        raise MediaProblem(
            "image for a text model",
            "the messages have an image, and the run's model reads text alone; choose what reads images with "
            "--model.vision where the command has it, or leave such rows out",
        )
