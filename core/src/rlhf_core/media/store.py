"""The store of a run's images: an entry for each, named by its content, made once.

An image that is a file stays where it is, and its entry is a link there. Every process of a run may make entries: one
appears whole or not at all, and two that make one for the same image agree.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError
from ..storage.atomic import READ_AND_WRITE
from ..storage.writing import made_whole, writing
from .reference import MediaRef


class MediaStore:
    """Images in a folder, by their references.

    Args:
        folder: made with the first image.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, reference: MediaRef) -> Path:
        """Return where the file of a reference is, or would be."""
        return self.folder / reference.file_name

    def put(self, content: bytes, reference: MediaRef) -> None:
        """Keep an image whose reference is known; if it is there already, the time of its use alone is written.

        Raises:
            StorageError: the image could not be written, and nothing of it is left.
        """
        path = self.path(reference)
        if path.exists():
            _use(path)
            if path.exists():  # it was not just being removed
                return
        with self._made(path) as made:
            made.write_bytes(content)
            # Open to whom its folder is, as the umask left that.
            made.chmod(path.parent.stat().st_mode & READ_AND_WRITE)

    @staticmethod
    @contextlib.contextmanager
    def _made(path: Path) -> Iterator[Path]:
        what = f"{path}, an image of this run,"
        with writing(what):
            path.parent.mkdir(parents=True, exist_ok=True)
        with made_whole(path, what=what, at_once=True) as made:
            yield made

    def link(self, origin: Path, reference: MediaRef) -> None:
        """Keep an image that stays in its file, whose bytes are now those of the reference.

        Raises:
            StorageError: the link could not be written.
        """
        path, target = self.path(reference), str(origin.resolve())
        if path.exists() and (not path.is_symlink() or os.readlink(path) == target):
            return
        with self._made(path) as made:
            made.symlink_to(target)

    def read(self, reference: MediaRef) -> bytes:
        """Return an image's bytes, which are those that were kept.

        Raises:
            DataError: the file is gone, or its bytes are others.
        """
        path = self.path(reference)
        named = f"{path.resolve()}, the image behind {path}" if path.is_symlink() else str(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            advice = _ADVICE if path.is_symlink() else _ROOM
            raise DataError(
                f"{named}: an image of this run cannot be read ({error.strerror}); expected the file that was there "
                f"when the run took it in{advice}",
                code="data/image-lost",
            ) from error
        if hashlib.sha256(content).hexdigest() == reference.sha256:
            return content
        if path.is_symlink():
            raise DataError(
                f"{named}: the image's bytes changed since the run took it in; expected the same file{_ADVICE}",
                code="data/image-changed",
            )
        raise DataError(
            f"{named}: the image's bytes changed since the run wrote them; remove the file, and it is written again",
            code="data/image-changed",
        )


def _use(path: Path) -> None:
    """Note that an image is used now, which keeps it where room is made; its own time stays as it is."""
    # A folder of somebody else's, or an image that is just being removed.
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


_ADVICE = ". Put it back, or set --data.copy_images for files that move or change"
_ROOM = ". If the run removed it for want of room, raise --rollout.drawn_images_gib"
