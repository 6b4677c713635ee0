"""Images of rollouts within the page: files of the run's own store, of known kinds, within limits of bytes."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import Any

from ..recorded.problems import Problems
from .chunks import Chunks

_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
    (b"BM", "image/bmp"),
)
"""First bytes -> type. Kinds that may hold a script, such as SVG, are none of them."""
MEDIA = "media"
MAX_IMAGE_BYTES = 4 << 20
"""Largest image that is embedded."""


class Images:
    """Embedded images, each once.

    Args:
        limit: largest number of bytes of all images of the page together.
    """

    def __init__(self, chunks: Chunks, limit: int) -> None:
        self._chunks = chunks
        self._left = limit
        self._known: dict[Path, dict[str, Any]] = {}

    def embedded(self, run: Path, recorded: Any, problems: Problems) -> list[dict[str, Any]]:
        """Return for each recorded image its size and place among tokens, with the name and type of its part of the
        page, or the reason why it is not there."""
        shown = []
        for image in recorded if isinstance(recorded, list) else ():
            if not isinstance(image, dict) or not isinstance(image.get("file"), str):
                problems.note("images without a file are left out")
                continue
            place = {
                key: image[key] for key in ("width", "height", "tokens") if _is_size(image.get(key))
            }
            if isinstance(image.get("time_s"), int | float):
                place["time_s"] = image["time_s"]
            shown.append({**place, **self._one(run, image["file"], problems)})
        return shown

    def _one(self, run: Path, name: str, problems: Problems) -> dict[str, Any]:
        store, path = run.resolve() / MEDIA, run.resolve() / name
        if path not in self._known:
            self._known[path] = self._embed(path, store, problems)
        return self._known[path]

    def _embed(self, path: Path, store: Path, problems: Problems) -> dict[str, Any]:
        # A record is data: it may not bring a file from elsewhere into a page that is sent around.
        if store not in path.parents or ".." in path.parts:
            return _outside(path, problems)
        try:
            facts = path.stat()
            if not stat.S_ISREG(facts.st_mode):  # a device has no end
                return _outside(path, problems)
            if facts.st_size > MAX_IMAGE_BYTES:
                problems.note(f"images above {MAX_IMAGE_BYTES >> 20} MiB are not shown", path.name)
                return {"why": f"above {MAX_IMAGE_BYTES >> 20} MiB"}
            data = path.read_bytes()
        except OSError as error:
            problems.note("image files cannot be read", f"{path.name}: {error.strerror}")
            return {"why": "the file is gone or cannot be read"}
        is_linked = (
            store not in path.resolve().parents
        )  # it, or a folder on its way, the store included
        if is_linked and hashlib.sha256(data).hexdigest() != path.stem:
            # The store links an image that is a file, under the digest of its bytes: no other file has that name.
            return _outside(path, problems)
        kind = next((kind for start, kind in _KINDS if data.startswith(start)), None)
        if kind is None:
            problems.note(
                "images of other kinds than PNG, JPEG, GIF, WebP and BMP are not shown", path.name
            )
            return {"why": "no PNG, JPEG, GIF, WebP or BMP"}
        part = self._chunks.add_bytes(data) if len(data) <= self._left else None
        if part is None:
            problems.note("images are left out, as the page is at its limit (--max-mb)")
            return {"why": "the page is at its limit (--max-mb)"}
        self._left -= len(data)
        return {"part": part, "kind": kind}


def _outside(path: Path, problems: Problems) -> dict[str, Any]:
    problems.note("images outside of the run's folder media are not shown", path.name)
    return {"why": "outside of the run's images"}


def _is_size(value: object) -> bool:
    if isinstance(value, list):
        return len(value) == 2 and all(type(each) is int for each in value)
    return type(value) is int
