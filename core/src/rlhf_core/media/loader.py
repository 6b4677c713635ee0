"""The way into a run for images: from what users give to references, with the bytes in the store, at once or when a
batch first has them."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import DataError
from .given import GivenImage, given_image, unreadable
from .inspecting import ImageFacts, MediaLimits, inspect, inspect_file
from .parts import image_parts, marks_in, references_in, with_references
from .problem import MediaProblem, shown
from .reference import MediaRef, PixelLimits
from .store import MediaStore

Message = Mapping[str, Any]
TakeRow = Callable[[int], str]
"""Takes in the images of the row of an index, and returns the row's place for messages."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaOptions:
    """Settings of a run for its images, as they cross process boundaries."""

    folder: str | None = None
    """Folder of the store; None: images are looked at and not kept."""
    limits: MediaLimits = field(default_factory=MediaLimits)
    allow_urls: bool = False
    copies: bool = False
    """Images that are files are copied into the store; else they stay where they are, with a link to them."""
    pixels: PixelLimits = field(default_factory=PixelLimits)
    """Area at which a model sees the images of rows that say nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Way in which images of some messages are taken in."""

    decodes: bool = True
    """Pixels are decoded at once; else where a model reads them, unless a file's end does not tell that it is whole."""
    keeps: bool = True
    """The store has them from now on, if there is one."""
    reads: bool = True
    """Files are read as a whole; else their headers are looked at, and an image is named by its file: see
    ``MediaLoader.taken``."""
    marks: bool = False
    """``<image>`` in a text is a place, whether or not images come beside the messages."""
    pixels: PixelLimits = field(default_factory=PixelLimits)
    """Area at which a model sees images that say nothing else."""


class MediaLoader:
    """Taker of images into a run: checks each one, puts it into the run's store, and gives a reference to it.

    An image that came before is only hashed, so a process decodes it once. At a first look (``Intake.reads`` is False)
    files are not read at all, because reading those of a large data set takes hours.
    """

    def __init__(self, options: MediaOptions) -> None:
        self.limits = options.limits
        self.pixels = options.pixels
        self.store = None if options.folder is None else MediaStore(Path(options.folder))
        self._allow_urls = options.allow_urls
        self._copies = options.copies
        self._known: dict[str, MediaRef] = {}
        self._decoded: set[str] = set()
        self._by_file: dict[str, MediaRef] = {}
        """References to contents, by the names of their files; see ``taken``."""
        self._warned = False

    def take(
        self,
        value: Any,
        folder: Path,
        intake: Intake | None = None,
        pixels: PixelLimits | None = None,
    ) -> MediaRef:
        """Return the reference of an image as a user gave it, which is in the store from now on.

        Args:
            folder: start of relative paths.
            intake: None: as ``Intake`` says by itself.
            pixels: the image's own limits.

        Raises:
            MediaProblem: the image cannot be used.
            MissingDependency: Pillow is not installed.
        """
        intake = intake or Intake()
        limits = (pixels or PixelLimits()).otherwise(intake.pixels)
        given = given_image(
            value,
            folder=folder,
            limits=self.limits,
            allow_urls=self._allow_urls,
            reads=intake.reads,
        )
        if given.content is None:
            assert given.origin is not None
            return self._looked_at(given.origin).within(limits)
        reference = self._reference(given, given.content, value, decodes=intake.decodes)
        if self.store is not None and intake.keeps:
            if given.origin is None or self._copies:
                self.store.put(given.content, reference)
            else:
                self.store.link(given.origin, reference)
        return reference.within(limits)

    def taken(self, looked_at: MediaRef) -> MediaRef | None:
        """Return the reference by content of an image that a first look named by its file, and that was taken since.

        None: it was not taken, or the file was another one then.
        """
        return self._by_file.get(looked_at.sha256) or self._known.get(looked_at.sha256)

    def messages(
        self,
        messages: Sequence[Message],
        images: Sequence[Any] = (),
        folder: Path | None = None,
        intake: Intake | None = None,
    ) -> tuple[Message, ...]:
        """Return messages whose images are references; see ``parts.with_references``.

        Args:
            images: images beside the messages.
            folder: start of relative paths; None: where the process was started.
            intake: None: as ``Intake`` says by itself.

        Raises:
            MediaProblem: an image cannot be used, there are too many, or they do not fit their places.
        """
        intake = intake or Intake()
        marks = bool(images) or (intake.marks and marks_in(messages))
        if not marks and not any(image_parts(messages)):
            return tuple(messages)
        start = folder or Path()
        whole = with_references(
            messages,
            images,
            lambda value, pixels: self.take(value, start, intake, pixels),
            marks=marks,
        )
        self.limits.check_count(len(references_in(whole)))
        return whole

    def _reference(
        self, given: GivenImage, content: bytes, value: Any, *, decodes: bool
    ) -> MediaRef:
        digest = hashlib.sha256(content).hexdigest()
        reference = self._known.get(digest)
        if reference is None or (decodes and digest not in self._decoded):
            facts = inspect(content, self.limits, decodes=decodes)
            if decodes:
                self._decoded.add(digest)
            self._warn_of_clipped(facts, value if given.origin is None else str(given.origin))
            reference = self._known[digest] = _reference_of(facts, digest, len(content))
        if given.origin is not None:
            self._by_file[_name_of(given.origin)] = reference
        return reference

    def _looked_at(self, origin: Path) -> MediaRef:
        """Return a reference to a file that is named by its place, size and time of change, and not by its content."""
        try:
            name, size = _name_of(origin), origin.stat().st_size
            with origin.open("rb") as file:
                facts = inspect_file(file, size, self.limits, decodes=False)
        except OSError as error:
            raise unreadable(origin, error) from error
        self._warn_of_clipped(facts, str(origin))
        return _reference_of(facts, name, size)

    def _warn_of_clipped(self, facts: ImageFacts, value: Any) -> None:
        if facts.is_clipped and not self._warned:
            self._warned = True
            log.warning(
                "an image has 16 bits a channel (%s): its values above 255 show white, as in Transformers. If it is to "
                "be seen otherwise, scale it to 8 bits",
                shown(value),
            )


class ImagesOnUse:
    """Images that were looked at, each with the row that has it.

    Args:
        reads: files are read at the first look, so that images can be compared by their contents; else their headers.
    """

    def __init__(self, loader: MediaLoader, *, reads: bool = False) -> None:
        self.reads = reads
        self._loader = loader
        self._rows: dict[str, tuple[TakeRow, int]] = {}
        self._taken: dict[str, MediaRef] = {}

    def note(self, images: Sequence[MediaRef], take: TakeRow, index: int) -> None:
        """Note images of a row that were looked at; of several rows with an image the first one is kept."""
        for image in images:
            self._rows.setdefault(image.sha256, (take, index))

    def use(self, image: MediaRef) -> MediaRef:
        """Return the reference by content of an image that was looked at, which is in the store from now on.

        Raises:
            DataError: the image is gone, or was changed.
        """
        if image.sha256 not in self._taken:
            take, index = self._rows[image.sha256]
            where = take(index)
            found = self._loader.taken(image)
            if found is None:
                raise DataError(
                    f"{where}: an image changed since the run looked at it; expected the same file. Put it "
                    "back, or start the run over",
                    code="data/image-changed",
                )
            self._taken[image.sha256] = found
        return replace(self._taken[image.sha256], limits=image.limits, frame=image.frame)


def _reference_of(facts: ImageFacts, digest: str, num_bytes: int) -> MediaRef:
    return MediaRef(
        sha256=digest,
        num_bytes=num_bytes,
        format=facts.format,
        width=facts.width,
        height=facts.height,
    )


def _name_of(file: Path) -> str:
    """Return a name in the form of a digest that a file has until it is changed."""
    facts = file.stat()
    named = f"{file.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}"
    return hashlib.sha256(os.fsencode(named)).hexdigest()


def images_in(value: Any) -> list[Any]:
    """Return the images of a row's column: one, or a list of them; none if the column is empty.

    Raises:
        MediaProblem: the value is a list within a list.
    """
    if value is None:
        return []
    if isinstance(value, list | tuple):
        if any(isinstance(one, list | tuple) for one in value):
            raise MediaProblem("no image", "expected a list of images, got a list of lists")
        return list(value)
    return [value]
