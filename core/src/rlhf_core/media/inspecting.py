"""A look at the bytes of an image: format, size, and everything for which it is refused.

Size and colors are read from the header before anything is decoded, so that a small file of very many pixels (a
decompression bomb) costs nothing.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from .formats import NAMES, becomes_rgb, file_format, is_whole, lies, num_frames, opened, words
from .problem import MediaProblem

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST_SIDE = 2
"""Smallest width and height, in pixels: an image of one pixel shows nothing, and processors fail on it."""
_DEEP = ("I", "F")
"""Modes of Pillow with 32 bits a channel, of which no conversion to 8 is right for all."""
_CONVERT = "Convert it: PIL.Image.open(FILE).convert('RGB').save(NEW)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """Limits on the images of one sequence, and on each of them."""

    max_images: int = 16
    """Images of one sequence, those of later turns included."""
    max_pixels: int = 4096 * 4096
    """Pixels of one image."""
    max_bytes: int = 20 * 2**20
    """Bytes of one image's file."""

    def check_bytes(self, num_bytes: int) -> None:
        """Refuse a file that is too large, or empty.

        Raises:
            MediaProblem: it is.
        """
        if not num_bytes:
            raise MediaProblem("empty image", f"the image has no bytes; expected a {NAMES}")
        if num_bytes > self.max_bytes:
            raise MediaProblem(
                "image too large",
                f"the image has {num_bytes} bytes, --data.max_image_bytes allows {self.max_bytes}",
            )

    def check_count(self, count: int) -> None:
        """Refuse a sequence with too many images.

        Raises:
            MediaProblem: it has.
        """
        if count > self.max_images:
            raise MediaProblem(
                "too many images",
                f"there are {count} images in one sequence, --data.max_images allows {self.max_images}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """Facts about an image that can be used."""

    format: str
    width: int
    """Pixels, of the image as it is shown: turned as its note on orientation says."""
    height: int
    is_clipped: bool = False
    """Its values have 16 bits, of which those above 255 show white, as in Transformers."""


def inspect(content: bytes, limits: MediaLimits, *, decodes: bool = True) -> ImageFacts:
    """Return format and size of an image's bytes; see ``inspect_file``."""
    return inspect_file(io.BytesIO(content), len(content), limits, decodes=decodes)


def inspect_file(
    file: BinaryIO, num_bytes: int, limits: MediaLimits, *, decodes: bool = True
) -> ImageFacts:
    """Return format and size of an image's file, of which no more is read than that takes.

    Args:
        num_bytes: size of the file.
        decodes: decode all pixels, which alone finds every damaged file; without it they are decoded where the header
            and the file's end leave open whether the file is whole.

    Raises:
        MediaProblem: the image cannot be used.
        MissingDependency: Pillow is not installed.
    """
    limits.check_bytes(num_bytes)
    image = opened(file)
    width, height = image.size
    _check_size(width, height, limits)
    _check_kind(image)
    is_decoded = decodes or not is_whole(image, file, num_bytes)
    if is_decoded:
        _load(image)
    if lies(image, is_decoded=is_decoded):
        width, height = height, width
    return ImageFacts(
        format=file_format(image),
        width=width,
        height=height,
        is_clipped=image.mode.startswith("I;16"),
    )


def decode(content: bytes) -> Image:
    """Return an image that ``inspect`` accepted as RGB, turned as its note on orientation (EXIF) says.

    The pixels are those of Transformers' ``load_image``, but that an alpha channel shows white, as in vLLM.

    Raises:
        MediaProblem: the pixels cannot be decoded.
    """
    from PIL import Image as images
    from PIL import ImageOps

    image = opened(io.BytesIO(content))
    _load(image)
    image = ImageOps.exif_transpose(image)
    if "A" not in image.getbands():
        converted: Image = image.convert("RGB")
        return converted
    colored = image.convert("RGBA")
    white = images.new("RGBA", image.size, (255, 255, 255, 255))
    return images.alpha_composite(white, colored).convert("RGB")


def _load(image: Any) -> None:
    try:
        image.load()
    except Exception as error:  # decoders raise errors of many kinds
        raise MediaProblem(
            "truncated or damaged image", f"the image's pixels cannot be decoded: {words(error)}"
        ) from error


def _check_size(width: int, height: int, limits: MediaLimits) -> None:
    if width * height > limits.max_pixels:
        raise MediaProblem(
            "image too large",
            f"the image has {width * height} pixels ({width} x {height}), --data.max_image_pixels allows "
            f"{limits.max_pixels}",
        )
    if min(width, height) < LEAST_SIDE:
        raise MediaProblem(
            "image too small",
            f"the image has {width} x {height} pixels; expected at least {LEAST_SIDE} x {LEAST_SIDE}",
        )


def _check_kind(image: Any) -> None:
    frames = num_frames(image)
    if frames > 1:
        raise MediaProblem(
            "several images in one",
            f"the image has {frames} frames or pages; expected one. Save one alone",
        )
    if image.mode in _DEEP:
        raise MediaProblem(
            "32-bit image",
            f"it has 32 bits a channel ({image.mode}); expected at most 16. {_CONVERT}, scaled to 0 to 255",
        )
    if not becomes_rgb(image.mode):
        raise MediaProblem(
            "colors of an image",
            f"its colors ({image.mode}) do not become RGB; expected RGB, gray, a palette or CMYK",
        )
