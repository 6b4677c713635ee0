"""Images as users give them: bytes, base64, a path, a URL, an entry of a table, or an image of Pillow."""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .inspecting import MediaLimits
from .problem import MediaProblem, shown

_WEB = ("http://", "https://")
_TIMEOUT_S = 30.0
KEYS = ("bytes", "base64", "image", "url", "path", "image_url")
"""Names under which an object may hold its image; the first that is set counts. Tables of ``datasets`` have bytes and a
path, of which the path is a mere name."""
_LONGEST_PATH = 4096
"""Characters of the longest path of Linux."""
_SHORTEST_BASE64 = 64
"""Characters; the smallest image takes more, and names of files may look like base64."""
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_BEGINNINGS = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")
"""First bytes of files of ``FORMATS``."""

_OF_PNG = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16", "F")
"""Modes of Pillow that stay as they are: a PNG has them, or the image is refused for them."""


class GivenImage(NamedTuple):
    """An image's file as it was given."""

    content: bytes | None
    """None: it was not read, since it stays where it is."""
    origin: Path | None = None
    """The file that it was read from; None: it was given itself, or fetched."""


def given_image(
    value: Any, *, folder: Path, limits: MediaLimits, allow_urls: bool, reads: bool = True
) -> GivenImage:
    """Return an image's file.

    Args:
        folder: start of relative paths.
        allow_urls: fetch ``http`` and ``https``; else they are refused.
        reads: read files; else their places alone are returned.

    Raises:
        MediaProblem: the value is none of the forms, there is no such file, or it is too large.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        limits.check_bytes(len(value))
        return GivenImage(bytes(value))
    if isinstance(value, Path):
        return _file(value, folder, limits, reads=reads)
    if isinstance(value, str):
        return _from_text(value, folder, limits, allow_urls=allow_urls, reads=reads)
    if isinstance(value, Mapping):
        for key in KEYS:
            found = value.get(key)
            if found is not None:
                if key == "base64":
                    return GivenImage(_decoded(found, limits))
                return given_image(
                    found, folder=folder, limits=limits, allow_urls=allow_urls, reads=reads
                )
    if is_pillow(value):
        content = _saved(value)
        limits.check_bytes(len(content))
        return GivenImage(content)
    raise MediaProblem(
        "no image",
        f"expected an image as a path, bytes, base64 or an object with one of them, got {type(value).__name__} "
        f"{shown(value)}",
    )


def plain_image(value: Any) -> Any:
    """Return an image as plain values: bytes and images of Pillow as a data URL, anything else as it is.

    Raises:
        MediaProblem: an image of Pillow cannot be written.
    """
    if isinstance(value, Path):
        return str(value)
    if is_pillow(value):
        value = _saved(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return "data:image;base64," + base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {key: plain_image(one) for key, one in value.items()}
    return value


def is_pillow(value: Any) -> bool:
    """Return whether a value is an image of Pillow, which need not be installed."""
    return hasattr(value, "save") and hasattr(value, "getbands")


def _from_text(
    text: str, folder: Path, limits: MediaLimits, *, allow_urls: bool, reads: bool
) -> GivenImage:
    if text.startswith("data:"):
        head, _, content = text.partition(",")
        if not head.endswith(";base64"):
            raise MediaProblem("no image", f"expected a data URL in base64, got {shown(head)}")
        return GivenImage(_decoded(content, limits))
    if text.startswith(_WEB):
        if not allow_urls:
            raise MediaProblem(
                "URL of an image",
                f"the image is a URL ({shown(text)}), which is not fetched; download it, or set "
                "--data.allow_image_urls",
            )
        return GivenImage(_fetched(text, limits))
    if _is_base64(text, folder):
        return GivenImage(_decoded(text, limits))
    if len(text) > _LONGEST_PATH:
        raise MediaProblem(
            "no image",
            f"expected the path of an image, or an image as base64 or a data URL; got a text that is none of these: "
            f"{shown(text)}",
        )
    return _file(Path(text.removeprefix("file://")), folder, limits, reads=reads)


def _is_base64(text: str, folder: Path) -> bool:
    """Return whether a text is an image's file in base64, and no path."""
    if len(text) < _SHORTEST_BASE64:
        return False
    start = "".join(text[:_SHORTEST_BASE64].split())
    start = start[: len(start) // 4 * 4]
    if not _BASE64.fullmatch(start):
        return False
    if not base64.b64decode(start).startswith(_BEGINNINGS):
        return False
    return len(text) > _LONGEST_PATH or not _exists(folder / text)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False  # too long a name, or one with a NUL


def _file(path: Path, folder: Path, limits: MediaLimits, *, reads: bool) -> GivenImage:
    whole = folder / path
    try:
        if not whole.is_file():
            # Not a FIFO or device either, which would hang.
            raise MediaProblem("missing image", f"there is no image file {shown(str(whole))}")
        limits.check_bytes(whole.stat().st_size)
        return GivenImage(whole.read_bytes() if reads else None, whole)
    except (OSError, ValueError) as error:
        if isinstance(error, MediaProblem):
            raise
        raise unreadable(whole, error) from error


def unreadable(path: Path, error: OSError | ValueError) -> MediaProblem:
    """Return the problem of an image's file that the system does not read."""
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return MediaProblem("missing image", f"image file {shown(str(path))} cannot be read: {reason}")


def _decoded(text: Any, limits: MediaLimits) -> bytes:
    if not isinstance(text, str):
        raise MediaProblem("no image", f"expected base64 as text, got {type(text).__name__}")
    limits.check_bytes(len(text) * 3 // 4)
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaProblem("no image", f"the image's base64 is malformed: {error}") from error


def _fetched(url: str, limits: MediaLimits) -> bytes:
    from http.client import HTTPException
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=_TIMEOUT_S) as answer:  # the scheme is one of _WEB
            content: bytes = answer.read(limits.max_bytes + 1)
    except (URLError, HTTPException, OSError, ValueError) as error:
        raise MediaProblem(
            "missing image", f"{shown(url)} cannot be fetched: {shown(str(error))}"
        ) from error
    limits.check_bytes(len(content))
    return content


def _saved(image: Any) -> bytes:
    """Return an image of Pillow as a PNG, turned as its note on orientation says, which a PNG would lose."""
    from PIL import ImageOps

    buffer = io.BytesIO()
    try:
        turned = ImageOps.exif_transpose(image)
        of_png = turned if turned.mode in _OF_PNG else turned.convert("RGB")
        of_png.save(buffer, format="PNG")
    except Exception as error:  # Pillow raises errors of many kinds
        raise MediaProblem("no image", f"the image cannot be written as PNG: {error}") from error
    return buffer.getvalue()
