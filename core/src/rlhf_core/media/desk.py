"""The way into a run for images: from what users give to references, with the bytes in the store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .given import bytes_of
from .inspecting import MediaLimits
from .parts import image_parts, references_in, refuse_videos, with_references
from .problem import MediaProblem
from .reference import MediaRef
from .store import MediaStore, reference_of

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaOptions:
    """Settings of a run for its images, as they cross process boundaries."""

    folder: str | None = None
    """Folder of the store; None: images are looked at and not kept."""
    limits: MediaLimits = field(default_factory=MediaLimits)
    allow_urls: bool = False


class MediaDesk:
    """Takes images in.

    An image that came before is only hashed: its pixels are decoded once a process.
    """

    def __init__(self, options: MediaOptions) -> None:
        self.limits = options.limits
        self.store = None if options.folder is None else MediaStore(Path(options.folder))
        self._allow_urls = options.allow_urls
        self._known: dict[str, MediaRef] = {}

    def take(self, value: Any, folder: Path) -> MediaRef:
        """Return the reference of an image as a user gave it, which is in the store from now on.

        Args:
            folder: start of relative paths.

        Raises:
            MediaProblem: the image cannot be used.
            MissingDependency: Pillow is not installed.
        """
        content = bytes_of(value, folder=folder, limits=self.limits, allow_urls=self._allow_urls)
        digest = hashlib.sha256(content).hexdigest()
        reference = self._known.get(digest)
        if reference is None:
            reference = self._known[digest] = reference_of(content, self.limits)
        if self.store is not None:
            self.store.put(content, reference)
        return reference

    def messages(
        self, messages: Sequence[Message], images: Sequence[Any] = (), folder: Path | None = None
    ) -> tuple[Message, ...]:
        """Return messages whose images are references; see ``parts.with_references``.

        Args:
            images: images beside the messages.
            folder: start of relative paths; None: where the process was started.

        Raises:
            MediaProblem: an image cannot be used, there are too many, or they do not fit their places.
        """
        refuse_videos(messages)
        if not images and not any(image_parts(messages)):
            return tuple(messages)
        start = folder or Path()
        whole = with_references(messages, images, lambda value: self.take(value, start))
        self.limits.check_count(len(references_in(whole)))
        return whole


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
