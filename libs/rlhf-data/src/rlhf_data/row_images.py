"""Images of data rows: those of a column and those within messages, as references in prompts and in rows."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.batch.task import Message
from rlhf_core.errors import DataError
from rlhf_core.media.loader import Intake, MediaLoader, images_in
from rlhf_core.media.parts import MARK, image_parts, references_in
from rlhf_core.media.problem import MediaProblem, shown
from rlhf_core.media.reader import ImageReader, without_images
from rlhf_core.media.reference import LIMITS, MediaRef, PixelLimits
from rlhf_core.media.videos import NO_FILE

from .chat.template.pieces import texts_of
from .rows import Prompt, RowProblem
from .source import Row, Source, Unreadable, filled_columns, row_error

log = logging.getLogger(__name__)

USUAL = ("images", "image")
"""Columns that have images where no option names one."""
_OTHER_PLACE = re.compile(r"<img>|<image[ _-]?\d+>|<\|image(?:_\d+|_pad)?\|>|\[IMG\]|<IMAGE>")
"""Words for places of images in rows that were written for other trainers or templates."""
_UNREAD = {"<video>": ("videos", "video"), "<audio>": ("audios", "audio")}
"""Words for places of other media -> columns that have them, in rows that were written for other trainers."""
_LOOKED_AT = 10
"""First rows of a source that are looked at for images that nobody reads."""
_MUST_SEE = ("data.train",)
"""Options whose rows are learned from or answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowImages:
    """Reader of the images of one source's rows.

    Without a loader the rows belong to a model that reads text alone, and an image is a row's problem.
    """

    loader: MediaLoader | None = None
    reader: ImageReader | None = None
    """Gives images their tokens; None: nobody asks for them, or there is no model that sees."""
    key: str | None = None
    """Column with an image or a list of them, beside the messages; None: one of ``USUAL``, where a row has it; empty:
    none, and ``<image>`` in texts is text."""
    folder: Path | None = None
    """Start of relative paths; None: where the process was started."""
    intake: Intake = field(default_factory=lambda: Intake(decodes=False))
    """Way in which images are taken in: by their files' headers, until a model reads them."""
    named: set[str] = field(default_factory=set)
    """Words that were named because they are no places for images."""

    @classmethod
    def of(cls, reader: ImageReader | None, spec: str = "") -> RowImages:
        """Return the reader of a source's images.

        Args:
            reader: the run's; None for a model that reads text alone.
            spec: the source as the user wrote it: relative paths start from the folder of a file.
        """
        if reader is None:
            return cls()
        found = cls(
            loader=reader.loader, reader=reader, key=reader.key, folder=start_of_paths(spec)
        )
        on_use = reader.on_use
        return found if on_use is None else found.measuring(reads=on_use.reads)

    @property
    def sees(self) -> bool:
        """Whether rows may have images."""
        return self.loader is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read for images."""
        if self.loader is None or self.key == "":
            return ()
        return (*(USUAL if self.key is None else (self.key,)), *LIMITS)

    def measuring(self, *, reads: bool = False) -> RowImages:
        """Return the reader for a first look at rows, in which no image is kept.

        Args:
            reads: files are read, so that images are named by their contents; else their headers.
        """
        reads = reads or self.intake.decodes
        return replace(self, intake=replace(self.intake, keeps=False, reads=reads))

    def keeping(self) -> RowImages:
        """Return the reader for rows whose images are used now."""
        return replace(self, intake=replace(self.intake, keeps=True, reads=True))

    def column(self, row: Row) -> str | None:
        """Return the column in which a row has images beside its messages; None: it has none.

        Raises:
            MediaProblem: several columns may be meant.
        """
        if self.loader is None or self.key == "":
            return None
        names = USUAL if self.key is None else (self.key,)
        given = [name for name in names if row.get(name) is not None]
        found = [name for name in given if images_in(row[name])] or given[:1]
        if len(found) > 1:
            raise MediaProblem(
                "several columns of images",
                f"the row has columns {' and '.join(found)}; name the one that has its images with --data.image_key",
            )
        return found[0] if found else None

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
            RowProblem: an image cannot be used, or has no place, or a place has no image.
        """
        try:
            return self._prompt(row, prompt)
        except MediaProblem as problem:
            raise RowProblem(problem.kind, problem.reason) from problem

    def prompt_again(self, row: Row, prompt: Prompt, where: str) -> Prompt:
        """Return the prompt of a row that was read before, as ``prompt`` does.

        Args:
            where: place of the row.

        Raises:
            DataError: an image is gone, or was changed.
        """
        try:
            return self.prompt(row, prompt)
        except RowProblem as problem:
            raise row_error(where, problem) from problem

    def plain_row(self, row: Row, prompt: Prompt, prompt_key: str) -> dict[str, Any]:
        """Return a row as rewards and environments get it: its images are references, as plain values.

        Args:
            prompt: the row's prompt, whose images are references.
            prompt_key: column of the prompt.
        """
        plain, column, media = dict(row), self.column(row), media_of(prompt)
        if column is not None:
            plain[column] = [image.fields() for image in media]
        given: Any = plain.get(prompt_key)
        if media and isinstance(given, list | tuple) and any(image_parts(given)):
            assert isinstance(prompt, tuple)  # it has images
            plain[prompt_key] = [dict(message) for message in prompt]
        return plain

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
        if self.loader is None:
            if isinstance(prompt, tuple):
                without_images(prompt)
            return prompt
        column = self.column(row)
        images = [] if column is None else images_in(row[column])
        if isinstance(prompt, tuple):
            return self._chat(row, prompt, images, column)
        if images:
            raise MediaProblem(
                "images without a chat",
                f"the row has {len(images)} images in column {column!r} and its prompt is plain text; images need a "
                "chat prompt. Add --data.chat, or, if the column has no images for the model, --data.image_key ''",
            )
        if self.key != "" and MARK in prompt:
            raise MediaProblem(
                "images and places differ",
                f"the prompt has a place for an image ({MARK}) and is plain text; images need a chat prompt. Add "
                "--data.chat, or, if the word is meant as text, --data.image_key ''",
            )
        return prompt

    def _chat(
        self, row: Row, prompt: tuple[Message, ...], images: Sequence[Any], column: str | None
    ) -> tuple[Message, ...]:
        assert self.loader is not None
        if self.key != "":
            _refuse_unread(row, prompt)
        limits = PixelLimits() if self.key == "" else PixelLimits.of(row)
        intake = replace(
            self.intake, marks=self.key != "", pixels=limits.otherwise(self.loader.pixels)
        )
        try:
            whole = self.loader.messages(prompt, images, self.folder, intake)
            if self.reader is not None:
                self.reader.check_frames(references_in(whole))
            if images and not any(image_parts(prompt)):
                self._say_other_places(prompt)
            return whole
        except MediaProblem as problem:
            if images or problem.kind != "images and places differ":
                raise
            raise MediaProblem(
                problem.kind, f"{problem.reason}. {self._no_image(row)}"
            ) from problem

    def _say_other_places(self, prompt: tuple[Message, ...]) -> None:
        """Warn once of each word that marks the place of an image for other trainers, and is plain text here."""
        text = " ".join(one for message in prompt for one in texts_of(message))
        if MARK in text:
            return
        for word in set(_OTHER_PLACE.findall(text)) - self.named:
            self.named.add(word)
            log.warning(
                "%s in a text is no place for an image, and stays there as a word: the images of such a row stand "
                "before the text. Write %s where an image belongs",
                word,
                MARK,
            )

    def _no_image(self, row: Row) -> str:
        """Return what to do about a row in which places have no image."""
        return (
            f"{_where_images_are(self.key)}, and the row has the columns {shown(', '.join(filled_columns(row)))}. Name "
            "the column that has them with --data.image_key, or, if <image> is meant as text, set --data.image_key ''"
        )


def _refuse_unread(row: Row, prompt: tuple[Message, ...]) -> None:
    """Refuse a video or a sound beside a prompt that has a place for it: the model would be asked without it."""
    for word, columns in _UNREAD.items():
        found = next((name for name in columns if row.get(name)), None)
        if found is None or not any(word in one for message in prompt for one in texts_of(message)):
            continue
        way = (
            f"Within messages videos are read; {NO_FILE}"
            if word == "<video>"
            else "Leave the row out"
        )
        raise MediaProblem(
            "file of a video" if word == "<video>" else "unknown part",
            f"the prompt has a place for what is in the column {found!r} ({word}), and of such columns images alone "
            f"are read. {way}; if {word} is meant as text, set --data.image_key ''",
        )


def _where_images_are(key: str | None) -> str:
    names = USUAL if key is None else (key,)
    return f"Images are looked for in the column {' or '.join(map(repr, names))}"


class SeenRows(NamedTuple):
    """Count of the images of a source's rows."""

    source: Source
    num_images: int

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the first row."""
        first = next(iter(self.source.scan()), {})
        return () if isinstance(first, Unreadable) else filled_columns(first)


def check_seen(reader: ImageReader | None, option: str, seen: Sequence[SeenRows]) -> None:
    """Refuse rows to learn from, or to answer, that have no image at all where the model reads images; warn of sources
    that have none beside others that do. Where the model reads text alone, say of each source whose first rows have
    images that nobody reads them.

    Args:
        reader: None: the model reads text alone.
        option: option that names the sources. Held-out rows and further ones may be of text alone: they are a warning.

    Raises:
        DataError: no row has an image, and none can come later.
    """
    if reader is None:
        warn_of_unread(option, (unread_images(one.source) for one in seen))
        return
    if reader.key == "":
        return
    blind = [one for one in seen if not one.num_images]
    if not blind:
        return
    is_misspelled = bool(reader.key) and all(reader.key not in one.columns for one in seen)
    none_follow = is_misspelled or not reader.draws
    if len(blind) == len(seen) and option in _MUST_SEE and none_follow:
        raise DataError(
            f"{option}: {_blindness(reader, blind)}; if the rows are meant to have none, set --data.image_key '', or "
            "leave --model.vision out.",
            code="data/no-images",
        )
    for one in blind:
        log.warning("%s: %s: %s", option, one.source.name, _blindness(reader, [one]))


def unread_images(source: Source) -> str | None:
    """Return where the first rows of a source have images, in words; None: nowhere."""
    for index, row in enumerate(islice(source.scan(), _LOOKED_AT)):
        found = [] if isinstance(row, Unreadable) else [name for name in USUAL if row.get(name)]
        if found:
            return f"rows have images in the column {found[0]!r} (from {source.where(index)} on)"
    return None


def warn_of_unread(option: str, where: Iterable[str | None]) -> None:
    """Say of sources whose rows have images that the model reads text alone.

    Args:
        where: what ``unread_images`` found in each.
    """
    for found in where:
        if found is not None:
            log.warning(
                "%s: %s, and the model reads text alone: it does without them. Choose what reads images with "
                "--model.vision",
                option,
                found,
            )


def _blindness(reader: ImageReader, blind: Sequence[SeenRows]) -> str:
    rows, total = blind[0], sum(len(one.source) for one in blind)
    missing = missing_images(reader, rows.columns)
    return f"none of {total} rows (from {rows.source.where(0)} on) has {missing}"


def missing_images(reader: ImageReader, columns: Sequence[str]) -> str:
    """Return what rows lack that have no image at all, and what to set.

    Args:
        columns: those of the rows.
    """
    return (
        f"an image, and the model reads images (--model.vision). {_where_images_are(reader.key)}, and in messages; the "
        f"rows have the columns {shown(', '.join(columns))}. Name the column that has images with --data.image_key"
    )


def start_of_paths(spec: str) -> Path | None:
    """Return the folder from which relative paths in a source's rows start: that of a file; None for other sources."""
    path = Path(spec)
    return path.parent if spec and path.is_file() else None


def media_of(prompt: Prompt) -> tuple[MediaRef, ...]:
    """Return the images of a prompt whose images are references, in order."""
    return references_in(prompt) if isinstance(prompt, tuple) else ()
