"""A look at the bytes of an image: format, size, and everything for which it is refused.

Size and colors are read from the header before anything is decoded, so that a small file of very many pixels (a
decompression bomb) costs nothing. Then all pixels are decoded once, because only that finds a truncated file.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import MissingDependency
from .problem import MediaProblem
from .reference import FORMATS

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST_SIDE = 2
"""Smallest width and height, in pixels: an image of one pixel shows nothing, and processors fail on it."""
COLORS = ("RGB", "RGBA", "L", "LA", "1")
"""Modes of Pillow that are read, with 8 bits or less a channel: they become RGB without a choice of profile."""
_REFUSED = {
    "P": ("palette image", "its colors are a palette"),
    "PA": ("palette image", "its colors are a palette"),
    "CMYK": ("CMYK image", "its colors are CMYK, for printing"),
    "YCCK": ("CMYK image", "its colors are CMYK, for printing"),
}
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
            raise MediaProblem(
                "empty image", "the image has no bytes; expected a PNG, JPEG or WebP"
            )
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
    height: int


def inspect(content: bytes, limits: MediaLimits) -> ImageFacts:
    """Return format and size of an image's bytes, all of whose pixels can be decoded.

    Raises:
        MediaProblem: the image cannot be used.
        MissingDependency: Pillow is not installed.
    """
    limits.check_bytes(len(content))
    image = _opened(content)
    width, height = image.size
    _check_size(width, height, limits)
    _check_kind(image)
    try:
        image.load()
    except Exception as error:  # decoders raise errors of many kinds
        raise MediaProblem(
            "truncated or damaged image", f"the image's pixels cannot be decoded: {_words(error)}"
        ) from error
    assert image.format is not None
    return ImageFacts(format=image.format.lower(), width=width, height=height)


def decode(content: bytes) -> Image:
    """Return an image that ``inspect`` accepted as RGB; what is transparent shows white.

    A JPEG's note of how the camera was held (EXIF orientation) is not followed: processors of models do not either.
    """
    image: Image = _opened(content)
    if "A" not in image.getbands():
        return image.convert("RGB")
    from PIL import Image as images

    colored = image.convert("RGBA")
    white = images.new("RGBA", image.size, (255, 255, 255, 255))
    return images.alpha_composite(white, colored).convert("RGB")


def _opened(content: bytes) -> Any:
    images = _pillow()
    try:
        with warnings.catch_warnings():
            # Sizes have a limit of their own here.
            warnings.simplefilter("ignore", images.DecompressionBombWarning)
            return images.open(io.BytesIO(content), formats=[each.upper() for each in FORMATS])
    except images.DecompressionBombError as error:
        raise MediaProblem(
            "image too large",
            f"the image has too many pixels (a decompression bomb?): {_words(error)}",
        ) from error
    except Exception as error:  # headers of damaged files make decoders raise errors of many kinds
        raise MediaProblem(
            "no image", "the bytes are not a whole PNG, JPEG or WebP image; expected one of these"
        ) from error


def _check_size(width: int, height: int, limits: MediaLimits) -> None:
    if width * height > limits.max_pixels:
        raise MediaProblem(
            "image too large",
            f"the image has {width} x {height} pixels, --data.max_image_pixels allows {limits.max_pixels}",
        )
    if min(width, height) < LEAST_SIDE:
        raise MediaProblem(
            "image too small",
            f"the image has {width} x {height} pixels; expected at least {LEAST_SIDE} x {LEAST_SIDE}",
        )


def _check_kind(image: Any) -> None:
    frames = getattr(image, "n_frames", 1)
    if frames > 1 or image.format not in {each.upper() for each in FORMATS}:
        raise MediaProblem(
            "animated image", f"the image has {frames} frames; expected one. Save one frame alone"
        )
    if image.mode not in COLORS:
        kind, what = _REFUSED.get(
            image.mode, ("16-bit image", f"it has more than 8 bits a channel ({image.mode})")
        )
        raise MediaProblem(kind, f"{what}; expected RGB or gray with 8 bits a channel. {_CONVERT}")
    if _png_depth(image) > 8:
        # Pillow cuts 16 bits of color to 8 without a word.
        raise MediaProblem(
            "16-bit image",
            f"it has 16 bits a channel; expected RGB or gray with 8 bits a channel. {_CONVERT}",
        )


def _png_depth(image: Any) -> int:
    """Return the bits of a channel that a PNG's header gives; 8 for other formats."""
    if image.format != "PNG":
        return 8
    image.fp.seek(24)
    depth = image.fp.read(1)
    return depth[0] if depth else 8


def _words(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _pillow() -> Any:
    try:
        from PIL import Image as images
    except ImportError as error:
        raise MissingDependency(
            "images need Pillow, which is not installed.\n  pip install 'rlhf-core[images]'"
        ) from error
    return images
