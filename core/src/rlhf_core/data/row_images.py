"""Images of data rows: those of a column and those within messages, as references in prompts and in rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..batch.task import Message
from ..media.desk import MediaDesk, images_in
from ..media.parts import image_parts, references_in
from ..media.problem import MediaProblem
from ..media.reader import ImageReader, without_images
from ..media.reference import MediaRef
from .rows import Prompt, RowProblem
from .source import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class RowImages:
    """Reader of the images of one source's rows.

    Without a desk the rows belong to a model that reads text alone, and an image is a row's problem.
    """

    desk: MediaDesk | None = None
    reader: ImageReader | None = None
    """Gives images their tokens; None: nobody asks for them, or there is no model that sees."""
    key: str | None = None
    """Column with an image or a list of them, beside the messages."""
    folder: Path | None = None
    """Start of relative paths; None: where the process was started."""

    @classmethod
    def of(cls, reader: ImageReader | None, spec: str = "") -> RowImages:
        """Return the reader of a source's images.

        Args:
            reader: the run's; None for a model that reads text alone.
            spec: the source as the user wrote it: relative paths start from the folder of a file.
        """
        if reader is None:
            return cls()
        return cls(desk=reader.desk, reader=reader, key=reader.key, folder=start_of_paths(spec))

    @property
    def sees(self) -> bool:
        """Whether rows may have images."""
        return self.desk is not None

    def chat(self, row: Row, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return a row's conversation with references in the place of images.

        Raises:
            RowProblem: as from ``prompt``.
        """
        made = self.prompt(row, messages)
        assert isinstance(made, tuple)
        return made

    def prompt(self, row: Row, prompt: Prompt) -> Prompt:
        """Return a row's prompt with references in the place of images.

        Raises:
            RowProblem: an image cannot be used, or has no place.
        """
        try:
            return self._prompt(row, prompt)
        except MediaProblem as problem:
            raise RowProblem(problem.kind, problem.reason) from problem

    def num_tokens(self, token_ids: list[int], prompt: Prompt) -> int:
        """Return the number of a prompt's tokens with all tokens of its images.

        Raises:
            RowProblem: images and markers do not fit.
        """
        if self.reader is None:
            return len(token_ids)
        try:
            return len(self.reader.expand(token_ids, media_of(prompt)).token_ids)
        except MediaProblem as problem:
            raise RowProblem(problem.kind, problem.reason) from problem

    def _prompt(self, row: Row, prompt: Prompt) -> Prompt:
        images = images_in(row.get(self.key)) if self.key is not None else []
        if self.desk is None:
            if isinstance(prompt, tuple):
                without_images(prompt)
            return prompt
        if isinstance(prompt, tuple):
            return self.desk.messages(prompt, images, self.folder)
        if images:
            raise MediaProblem(
                "images without a chat",
                f"the row has {len(images)} images and its prompt is plain text; images need a chat prompt. Add "
                "--data.chat",
            )
        return prompt


def start_of_paths(spec: str) -> Path | None:
    """Return the folder from which relative paths in a source's rows start: that of a file; None for other sources."""
    path = Path(spec)
    return path.parent if spec and path.is_file() else None


def media_of(prompt: Prompt) -> tuple[MediaRef, ...]:
    """Return the images of a prompt whose images are references, in order."""
    return references_in(prompt) if isinstance(prompt, tuple) else ()


def row_with_references(
    row: Mapping[str, Any], prompt: Prompt, *, prompt_key: str, image_key: str | None
) -> dict[str, Any]:
    """Return a row as rewards and environments get it: its images are the references of its prompt, as plain values.

    Args:
        prompt: the row's prompt, whose images are references.
    """
    plain = dict(row)
    media = media_of(prompt)
    if image_key is not None and image_key in plain:
        plain[image_key] = [image.fields() for image in media]
    given: Any = plain.get(prompt_key)
    if media and isinstance(given, list | tuple) and any(image_parts(given)):
        plain[prompt_key] = [dict(message) for message in _chat(prompt)]
    return plain


def _chat(prompt: Prompt) -> tuple[Message, ...]:
    assert isinstance(prompt, tuple)
    return prompt
