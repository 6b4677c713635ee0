"""Files of images by their headers: what they are, how they are turned, and whether their end is there.

Nothing is decoded for that but where a file leaves it open. Decoding a data set takes hours that opening it does not.
"""

from __future__ import annotations

import struct
import warnings
from functools import cache
from typing import Any, BinaryIO

from ..errors import MissingDependency
from ..problem import headline
from .problem import MediaProblem
from .reference import FORMATS

NAMES = "PNG, JPEG, WebP, GIF, BMP or TIFF"
"""The formats, for messages."""
_ORIENTATION = 0x0112
"""Number of EXIF's note on how the camera was held."""
_LYING = (5, 6, 7, 8)
"""Its values by which width and height change places."""
_PNG_HEADER = 8
_LATE_NOTES = (b"eXIf", b"iTXt", b"tEXt", b"zTXt")
"""Chunks of a PNG that may hold a note on orientation."""


def opened(file: BinaryIO) -> Any:
    """Return a Pillow image with its header read; its pixels are read from the file on first use.

    Raises:
        MediaProblem: the bytes are not an image in one of ``FORMATS``.
        MissingDependency: Pillow is not installed.
    """
    images = pillow()
    try:
        with warnings.catch_warnings():
            # Sizes have a limit of their own here.
            warnings.simplefilter("ignore", images.DecompressionBombWarning)
            return images.open(file, formats=[each.upper() for each in FORMATS])
    except images.DecompressionBombError as error:
        raise MediaProblem(
            "image too large",
            f"the image has too many pixels (a decompression bomb?): {words(error)}",
        ) from error
    except Exception as error:  # headers of damaged files make decoders raise errors of many kinds
        raise MediaProblem(
            "no image", f"the bytes are not a whole image of {NAMES}; expected one of these"
        ) from error


def file_format(image: Any) -> str:
    """Return the format, one of ``FORMATS``, of an image that ``opened`` gave."""
    return "jpeg" if image.format == "MPO" else str(image.format).lower()


def is_whole(image: Any, file: BinaryIO, num_bytes: int) -> bool:
    """Return whether a file's end is there, as far as the file says; False: decode it to find out."""
    ends = {"png": _ends_png, "jpeg": _ends_jpeg, "webp": _ends_webp, "gif": _ends_gif}
    end = ends.get(file_format(image))
    place = file.tell()
    try:
        return end is not None and end(file, num_bytes)
    finally:
        file.seek(place)  # Pillow reads on from there


def num_frames(image: Any) -> int:
    """Return the number of frames or pages of an image.

    The further pictures of a phone's MPO are a preview or a map of brightness: they are no frames.

    Raises:
        MediaProblem: they cannot be counted.
    """
    if image.format == "MPO":
        return 1
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception as error:  # damaged files make Pillow raise errors of many kinds
        raise MediaProblem(
            "truncated or damaged image", f"the image's frames cannot be counted: {words(error)}"
        ) from error


def lies(image: Any, *, is_decoded: bool) -> bool:
    """Return whether width and height change places when an image is turned as its note on orientation says.

    Args:
        is_decoded: the pixels were decoded; else the header is all that is looked at, which ``is_whole`` found to be
            enough.

    Raises:
        MediaProblem: the note cannot be read.
    """
    # Pillow's own method decodes a PNG to look for more notes.
    by_header = image.format == "PNG" and not is_decoded
    try:
        notes = pillow().Image.getexif(image) if by_header else image.getexif()
    except Exception as error:  # damaged notes make Pillow raise errors of many kinds
        raise MediaProblem(
            "damaged EXIF",
            f"the image's notes (EXIF) cannot be read: {words(error)}. Save the image without them",
        ) from error
    return bool(notes.get(_ORIENTATION, 1) in _LYING)


@cache
def becomes_rgb(mode: str) -> bool:
    """Return whether Pillow has a conversion from a mode to RGB."""
    try:
        pillow().new(mode, (1, 1)).convert("RGB")
    except (ValueError, OSError):
        return False
    return True


def words(error: Exception) -> str:
    """Return the first line of an error's message."""
    return headline(error)[:200]


def pillow() -> Any:
    """Return Pillow's module of images.

    Raises:
        MissingDependency: Pillow is not installed.
    """
    try:
        from PIL import Image as images
    except ImportError as error:
        raise MissingDependency(
            "images need Pillow, which is not installed.\n  pip install 'rlhf-core[images]'"
        ) from error
    return images


def _ends_png(file: BinaryIO, num_bytes: int) -> bool:
    """Return whether a PNG's chunks go on to its last one, with no note on orientation behind the pixels: Pillow finds
    that one only when it decodes."""
    place, has_pixels = _PNG_HEADER, False
    while place + 12 <= num_bytes:
        size, kind = struct.unpack(">I4s", _read(file, place, 8))
        if kind == b"IEND":
            return True
        if has_pixels and kind in _LATE_NOTES:
            return False
        has_pixels |= kind == b"IDAT"
        place += 12 + size
    return False


def _ends_jpeg(file: BinaryIO, num_bytes: int) -> bool:
    return _read(file, num_bytes - 2, 2) == b"\xff\xd9"


def _ends_webp(file: BinaryIO, num_bytes: int) -> bool:
    size: int = struct.unpack("<I", _read(file, 4, 4))[0]
    return num_bytes >= size + 8


def _ends_gif(file: BinaryIO, num_bytes: int) -> bool:
    return _read(file, num_bytes - 1, 1) == b";"


def _read(file: BinaryIO, place: int, length: int) -> bytes:
    file.seek(place)
    return file.read(length)
