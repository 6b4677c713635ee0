"""The way into a run for images: from what users give to references, with the bytes in the store."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .given import GivenImage, given_image
from .inspecting import MediaLimits, inspect
from .parts import image_parts, marks_in, references_in, refuse_videos, with_references
from .problem import MediaProblem, shown
from .reference import MediaRef, PixelLimits
from .store import MediaStore

Message = Mapping[str, Any]

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
    marks: bool = False
    """``<image>`` in a text is a place, whether or not images come beside the messages."""
    pixels: PixelLimits = field(default_factory=PixelLimits)
    """Area at which a model sees images that say nothing else."""


class MediaDesk:
    """Takes images in.

    An image that came before is only hashed: it is looked at once a process.
    """

    def __init__(self, options: MediaOptions) -> None:
        self.limits = options.limits
        self.pixels = options.pixels
        self.store = None if options.folder is None else MediaStore(Path(options.folder))
        self._allow_urls = options.allow_urls
        self._copies = options.copies
        self._known: dict[str, MediaRef] = {}
        self._decoded: set[str] = set()
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
        given = given_image(value, folder=folder, limits=self.limits, allow_urls=self._allow_urls)
        reference = self._reference(given, value, decodes=intake.decodes)
        if self.store is not None and intake.keeps:
            if given.origin is None or self._copies:
                self.store.put(given.content, reference)
            else:
                self.store.link(given.origin, reference)
        limits = (pixels or PixelLimits()).otherwise(intake.pixels)
        return replace(reference, limits=limits) if limits else reference

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
        refuse_videos(messages)
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

    def _reference(self, given: GivenImage, value: Any, *, decodes: bool) -> MediaRef:
        digest = hashlib.sha256(given.content).hexdigest()
        reference = self._known.get(digest)
        if reference is not None and (digest in self._decoded or not decodes):
            return reference
        facts = inspect(given.content, self.limits, decodes=decodes)
        if decodes:
            self._decoded.add(digest)
        if facts.is_clipped and not self._warned:
            self._warned = True
            log.warning(
                "an image has 16 bits a channel (%s): its values above 255 show white, as in Transformers. If it is to "
                "be seen otherwise, scale it to 8 bits",
                shown(value if given.origin is None else str(given.origin)),
            )
        reference = self._known[digest] = MediaRef(
            sha256=digest,
            num_bytes=len(given.content),
            format=facts.format,
            width=facts.width,
            height=facts.height,
        )
        return reference


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
