"""References to images: what crosses processes in the place of their bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .problem import MediaProblem, shown

FORMATS = ("png", "jpeg", "webp", "gif", "bmp", "tiff")
"""Formats of files that are read. A phone's MPO, a JPEG with more pictures behind the first, is a JPEG."""
LIMITS = ("min_pixels", "max_pixels")
"""Names of the limits on the area at which a model sees an image: of a part of a message, a column, and options."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAMES = ("sha256", "num_bytes", "format", "width", "height")
_FRAME = "frame"


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelLimits:
    """Limits on the area, in pixels, at which a model sees an image; None: as the model's processor says."""

    min_pixels: int | None = None
    """Smaller images are enlarged to this area."""
    max_pixels: int | None = None
    """Larger images are reduced to this area."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> PixelLimits:
        """Return the limits that a part of a message or a row has under their names.

        Raises:
            MediaProblem: a value is no whole number from 1 on, or the smaller area is the larger one.
        """
        found = {name: fields[name] for name in LIMITS if fields.get(name) is not None}
        for name, value in found.items():
            if type(value) is not int or value < 1:
                raise MediaProblem(
                    "limit of an image's area",
                    f"{name} is {shown(value)}; expected pixels, a whole number from 1 on",
                )
        limits = cls(**found)
        limits.check()
        return limits

    def otherwise(self, other: PixelLimits) -> PixelLimits:
        """Return these limits, and those of ``other`` where these have none.

        Raises:
            MediaProblem: the smaller area is the larger one.
        """
        limits = PixelLimits(
            min_pixels=other.min_pixels if self.min_pixels is None else self.min_pixels,
            max_pixels=other.max_pixels if self.max_pixels is None else self.max_pixels,
        )
        limits.check()
        return limits

    def fields(self) -> dict[str, int]:
        """Return the limits that are set, by name."""
        named = {"min_pixels": self.min_pixels, "max_pixels": self.max_pixels}
        return {name: value for name, value in named.items() if value is not None}

    def check(self) -> None:
        """Refuse a smallest area above the largest one.

        Raises:
            MediaProblem: it is.
        """
        if self.min_pixels is None or self.max_pixels is None or self.min_pixels <= self.max_pixels:
            return
        raise MediaProblem(
            "limit of an image's area",
            f"min_pixels is {self.min_pixels}; expected at most max_pixels = {self.max_pixels}",
        )

    def __bool__(self) -> bool:
        return self.min_pixels is not None or self.max_pixels is not None


ANY_AREA = PixelLimits()
"""No limits: as the model's processor says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Place of an image in a video."""

    index: int
    """Number of the frame; 0 begins a video."""
    count: int
    """Number of frames of the video, at least 2."""
    time_s: float
    """Seconds from the start of the video."""
    rate: float
    """Frames a second, above 0; of frames at uneven times their mean."""

    @classmethod
    def of(cls, fields: Any) -> Frame:
        """Return the place that ``dataclasses.asdict`` wrote.

        Raises:
            MediaProblem: the values are none of a place.
        """
        if isinstance(fields, Mapping) and fields.keys() == {*cls.__slots__}:
            index, count, time_s, rate = (fields[name] for name in cls.__slots__)
            kinds = [type(fields[name]) for name in cls.__slots__]
            if (
                kinds == [int, int, float, float]
                and 0 <= index < count
                and math.isfinite(time_s)
                and 0 < rate < math.inf
            ):
                return cls(index=index, count=count, time_s=time_s, rate=rate)
        raise MediaProblem(
            "bad reference", f"expected the place of a frame in a video, got {shown(fields)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRef:
    """An image by its content: two files of the same bytes have one reference."""

    sha256: str
    """Digest of the file's bytes, in 64 hexadecimal digits; after a first look, of what names the file
    (``MediaLoader.taken``)."""
    num_bytes: int
    """Bytes of the file."""
    format: str
    """One of ``FORMATS``."""
    width: int
    """Pixels, of the image as it is shown: turned as its note on orientation (EXIF) says."""
    height: int
    """Pixels."""
    limits: PixelLimits = ANY_AREA
    """Area at which a model sees it, where that was set for this image."""
    frame: Frame | None = None
    """Its place in a video; None: it is an image by itself."""

    @property
    def file_name(self) -> str:
        """Path of the image's file in a store, from the store's folder on."""
        return f"{self.sha256[:2]}/{self.sha256}.{self.format}"

    @property
    def identity(self) -> str:
        """Name that two images share exactly if a model sees the same in both."""
        limits = "".join(f";{name}={value}" for name, value in self.limits.fields().items())
        frame = "" if self.frame is None else f";{self.frame}"
        return self.sha256 + limits + frame

    def within(self, limits: PixelLimits) -> MediaRef:
        """Return the image at an area within other limits."""
        return self if limits == self.limits else replace(self, limits=limits)

    def fields(self) -> dict[str, Any]:
        """Return the reference as plain values; ``of`` inverts it."""
        plain = {name: getattr(self, name) for name in _NAMES} | self.limits.fields()
        return plain if self.frame is None else plain | {_FRAME: asdict(self.frame)}

    @classmethod
    def of(cls, fields: Any) -> MediaRef:
        """Return the reference that ``fields`` wrote.

        Raises:
            MediaProblem: the values are none of a reference.
        """
        if isinstance(fields, Mapping) and fields.keys() - {*LIMITS, _FRAME} == {*_NAMES}:
            numbers = [fields[name] for name in ("num_bytes", "width", "height")]
            if (
                all(type(number) is int and number > 0 for number in numbers)
                and fields["format"] in FORMATS
                and isinstance(fields["sha256"], str)
                and _DIGEST.fullmatch(fields["sha256"])
            ):
                named = {name: fields[name] for name in _NAMES}
                frame = None if fields.get(_FRAME) is None else Frame.of(fields[_FRAME])
                return cls(**named, limits=PixelLimits.of(fields), frame=frame)
        raise MediaProblem(
            "bad reference", f"expected the fields of a reference to an image, got {shown(fields)}"
        )
