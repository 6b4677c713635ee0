"""Images of prompts and observations, for a model that sees: taken in, and given their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from .loader import ImagesOnUse, Intake, MediaLoader
from .parts import image_parts, references_in
from .problem import MediaProblem
from .processor_text import NOTHING, ProcessorText
from .reference import MediaRef
from .spans import Expanded, ImageTokens, check_frames, expanded
from .videos import is_video

Message = Mapping[str, Any]


class ImageReader:
    """Reader of a run's images, before an engine gets them.

    Args:
        loader: takes images into the run's store.
        tokens: how the model writes images.
        key: column of a row with its images, beside its messages; None: the columns that usually have them; empty:
            there is none, and rows need no images.
        draws: images may come in later turns, so that rows need none.
        no_videos: why the run reads no frames of videos, whatever the model reads, and the way out; None: it does.
        on_use: takes images of rows in when a batch has them; None: they are taken in when their rows are read.
    """

    def __init__(
        self,
        loader: MediaLoader,
        tokens: ImageTokens,
        key: str | None = None,
        *,
        draws: bool = False,
        no_videos: str | None = None,
        on_use: ImagesOnUse | None = None,
    ) -> None:
        self.loader = loader
        self.tokens = tokens
        self.key = key
        self.draws = draws
        self.no_videos = no_videos
        self.on_use = on_use

    def taking_on_use(self, *, compares: bool) -> ImageReader:
        """Return a reader that looks at the images of rows, and takes them in when a batch has them.

        Args:
            compares: rows are compared by the contents of their images, which are read for that.
        """
        on_use = ImagesOnUse(self.loader, reads=compares)
        reader = copy(self)
        reader.on_use = on_use
        return reader

    def messages(
        self,
        messages: Sequence[Message],
        images: Sequence[Any] = (),
        folder: Path | None = None,
        intake: Intake | None = None,
    ) -> tuple[Message, ...]:
        """Return messages whose images are references; see ``MediaLoader.messages``.

        Raises:
            MediaProblem: as there, or there is a video that the model or the run does not read.
        """
        whole = self.loader.messages(messages, images, folder, intake)
        self.check_frames(references_in(whole))
        return whole

    def check_frames(self, images: Sequence[MediaRef]) -> None:
        """Refuse frames of a video that the model or the run does not read.

        Raises:
            MediaProblem: there is one.
        """
        check_frames(images, self.tokens)
        if self.no_videos is not None and any(image.frame is not None for image in images):
            raise MediaProblem("video", f"there are frames of a video; {self.no_videos}")

    def expand(self, token_ids: Sequence[int], images: Sequence[MediaRef]) -> Expanded:
        """Return a sequence with all tokens of its images, and those that the model's processor puts before it.

        Args:
            token_ids: tokens with one marker for each image, as the chat template writes them.

        Raises:
            MediaProblem: there are too many images, more or fewer than markers, or one of a size that the model cannot
                read.
        """
        self.loader.limits.check_count(len(images))
        if (check := getattr(self.tokens, "check_count", None)) is not None:
            check(len(images))
        return expanded(self.tokens.writing.begun(token_ids), images, self.tokens)


def writing_of(reader: ImageReader | None) -> ProcessorText:
    """Return what the model's processor writes into conversations; nothing for a model that reads text alone."""
    return NOTHING if reader is None else reader.tokens.writing


def without_images(messages: Sequence[Message]) -> None:
    """Refuse images in messages for a model that reads none.

    Raises:
        MediaProblem: there is one.
    """
    for part in image_parts(messages):
        raise MediaProblem(
            "image for a text model",
            f"the messages have {'a video' if is_video(part) else 'an image'}, and the run's model reads text alone; "
            "choose what reads images with --model.vision where the command has it, or leave such rows out",
        )
