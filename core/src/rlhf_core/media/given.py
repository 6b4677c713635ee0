"""Images as users give them: bytes, base64, a path, a URL, an entry of a table, or an image of Pillow."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .inspecting import MediaLimits
from .problem import MediaProblem

_WEB = ("http://", "https://")
_TIMEOUT_S = 30.0
KEYS = ("bytes", "base64", "image", "url", "path", "image_url")
"""Names under which an object may hold its image; the first that is set counts. Tables of ``datasets`` have bytes and a
path, of which the path is a mere name."""


def bytes_of(value: Any, *, folder: Path, limits: MediaLimits, allow_urls: bool) -> bytes:
    """Return the bytes of an image's file.

    Args:
        folder: start of relative paths.
        allow_urls: fetch ``http`` and ``https``; else they are refused.

    Raises:
        MediaProblem: the value is none of the forms, there is no such file, or it is too large.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        limits.check_bytes(len(value))
        return bytes(value)
    if isinstance(value, Path):
        return _file(value, folder, limits)
    if isinstance(value, str):
        return _from_text(value, folder, limits, allow_urls=allow_urls)
    if isinstance(value, Mapping):
        for key in KEYS:
            found = value.get(key)
            if found is not None:
                if key == "base64":
                    return _decoded(found, limits)
                return bytes_of(found, folder=folder, limits=limits, allow_urls=allow_urls)
    if is_pillow(value):
        content = _saved(value)
        limits.check_bytes(len(content))
        return content
    raise MediaProblem(
        "no image",
        f"expected an image as a path, bytes, base64 or an object with one of them, got {type(value).__name__} "
        f"{value!r:.60}",
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


def _from_text(text: str, folder: Path, limits: MediaLimits, *, allow_urls: bool) -> bytes:
    if text.startswith("data:"):
        head, _, content = text.partition(",")
        if not head.endswith(";base64"):
            raise MediaProblem("no image", f"expected a data URL in base64, got {head!r:.60}")
        return _decoded(content, limits)
    if text.startswith(_WEB):
        if not allow_urls:
            raise MediaProblem(
                "URL of an image",
                f"the image is a URL ({text:.120}), which is not fetched; download it, or set --data.allow_image_urls",
            )
        return _fetched(text, limits)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return _file(Path(text), folder, limits)


def _file(path: Path, folder: Path, limits: MediaLimits) -> bytes:
    whole = folder / path
    try:
        if not whole.is_file():
            # Not a FIFO or device either, which would hang.
            raise MediaProblem("missing image", f"there is no image file {whole}")
        limits.check_bytes(whole.stat().st_size)
        return whole.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, MediaProblem):
            raise
        raise MediaProblem(
            "missing image", f"image file {whole} cannot be read: {error}"
        ) from error


def _decoded(text: Any, limits: MediaLimits) -> bytes:
    if not isinstance(text, str):
        raise MediaProblem("no image", f"expected base64 as text, got {type(text).__name__}")
    limits.check_bytes(len(text) * 3 // 4)
    try:
        return base64.b64decode(text, validate=True)
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
        raise MediaProblem("missing image", f"{url:.120} cannot be fetched: {error}") from error
    limits.check_bytes(len(content))
    return content


def _saved(image: Any) -> bytes:
    """Return an image of Pillow as a PNG."""
    buffer = io.BytesIO()
    try:
        image.save(buffer, format="PNG")
    except Exception as error:  # Pillow raises errors of many kinds
        raise MediaProblem("no image", f"the image cannot be written as PNG: {error}") from error
    return buffer.getvalue()
