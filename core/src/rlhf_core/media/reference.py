"""References to images: what crosses processes in the place of their bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .problem import MediaProblem

FORMATS = ("png", "jpeg", "webp")
"""Formats of files that are read."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRef:
    """An image by its content: two files of the same bytes have one reference."""

    sha256: str
    """Digest of the file's bytes, in 64 hexadecimal digits."""
    num_bytes: int
    """Bytes of the file."""
    format: str
    """One of ``FORMATS``."""
    width: int
    """Pixels."""
    height: int
    """Pixels."""

    @property
    def file_name(self) -> str:
        """Path of the image's file in a store, from the store's folder on."""
        return f"{self.sha256[:2]}/{self.sha256}.{self.format}"

    def fields(self) -> dict[str, Any]:
        """Return the reference as plain values; ``of`` inverts it."""
        return asdict(self)

    @classmethod
    def of(cls, fields: Any) -> MediaRef:
        """Return the reference that ``fields`` wrote.

        Raises:
            MediaProblem: the values are none of a reference.
        """
        if isinstance(fields, Mapping) and fields.keys() == {*cls.__slots__}:
            numbers = [fields[name] for name in ("num_bytes", "width", "height")]
            if (
                all(type(number) is int and number > 0 for number in numbers)
                and fields["format"] in FORMATS
                and isinstance(fields["sha256"], str)
                and _DIGEST.fullmatch(fields["sha256"])
            ):
                return cls(**fields)
        raise MediaProblem(
            "bad reference", f"expected the fields of a reference to an image, got {fields!r:.80}"
        )
