"""Images for tests: good ones, those of other kinds, and one of each kind that is refused."""

import hashlib
import io
import struct
import zlib

from PIL import Image

from rlhf_core.media.inspecting import MediaLimits, inspect
from rlhf_core.media.reference import MediaRef

SHOWS = '''
"""Shows an image, and another after each turn."""
from rlhf_core.contracts import Observation, StepResult
from PIL import Image

def shown(number):
    image = Image.new("RGB", (16 + 8 * (number % 3), 16), (40 * number % 256, 90, 17))
    parts = [{"type": "image", "image": image}, {"type": "text", "text": "what?"}]
    return Observation(messages=({"role": "user", "content": parts},))

class Shows:
    async def reset(self, task, seed):
        self.turn = task.uid.prompt
        return shown(self.turn)

    async def step(self, action):
        self.turn += 1
        return StepResult(observation=shown(self.turn), reward=float(len(action.text) % 3))

    async def close(self):
        pass
'''
"""Source of an environment ``Shows``, for runs: the number of its images is the prompt's, and one more each turn."""


def saved(image: Image.Image, format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def reference_of(content: bytes) -> MediaRef:
    """The reference of an image's bytes, within no limits."""
    facts = inspect(content, MediaLimits())
    return MediaRef(
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        format=facts.format,
        width=facts.width,
        height=facts.height,
    )


def noisy(width: int = 20, height: int = 12, mode: str = "RGB") -> Image.Image:
    """An image whose pixels do not compress to nothing."""
    pixels = bytes((31 * i * i + 7 * i) % 251 for i in range(width * height * 3))
    return Image.frombytes("RGB", (width, height), pixels).convert(mode)


def refused() -> dict[str, tuple[bytes, str, str]]:
    """Name -> bytes, what the reason says, and the code of the row's error."""
    frames = [noisy(), noisy().transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    whole, jpeg = saved(noisy(64, 64)), saved(noisy(64, 64), "JPEG")
    return {
        "empty": (b"", "no bytes", "data/empty-image"),
        "text": (
            b"not an image at all",
            "not a whole image of PNG, JPEG, WebP, GIF, BMP or TIFF",
            "data/no-image",
        ),
        "truncated png": (
            whole[: len(whole) * 2 // 3],
            "cannot be decoded",
            "data/truncated-or-damaged-image",
        ),
        "truncated jpeg": (
            jpeg[: len(jpeg) * 2 // 3],
            "cannot be decoded",
            "data/truncated-or-damaged-image",
        ),
        "truncated gif": (
            saved(noisy(64, 64), "GIF")[:-900],
            "cannot be decoded|counted",
            "data/truncated-or-damaged-image",
        ),
        "header alone": (whole[:20], "not a whole image|cannot be decoded", "data/no-image"),
        "animated webp": (
            saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True),
            "2 frames",
            "data/several-images-in-one",
        ),
        "animated png": (
            saved(frames[0], save_all=True, append_images=frames[1:]),
            "2 frames",
            "data/several-images-in-one",
        ),
        "animated gif": (
            saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
            "2 frames",
            "data/several-images-in-one",
        ),
        "pages": (
            saved(frames[0], "TIFF", save_all=True, append_images=frames[1:]),
            "2 frames",
            "data/several-images-in-one",
        ),
        "32 bits": (
            saved(Image.new("F", (8, 8), 0.5), "TIFF"),
            "32 bits a channel",
            "data/32-bit-image",
        ),
        "one pixel": (
            saved(Image.new("RGB", (1, 1))),
            "1 x 1 pixels; expected at least 2 x 2",
            "data/image-too-small",
        ),
        "one column": (saved(Image.new("RGB", (1, 50))), "1 x 50", "data/image-too-small"),
        "huge": (
            saved(Image.new("L", (5000, 5000))),
            r"5000 x 5000\), --data.max_image_pixels",
            "data/image-too-large",
        ),
        "bomb": (_bomb(), "pixels", "data/image-too-large"),
    }


def odd() -> dict[str, bytes]:
    """Name -> bytes of an image that is not three or four channels of 8 bits as they are shown."""
    return {
        **{f"turned by {one}": turned_jpeg(one) for one in range(1, 9)},
        "turned png": saved(noisy(), exif=_held(6)),
        "turned webp": saved(noisy(), "WEBP", exif=_held(8), lossless=True),
        "turned tiff": saved(noisy(), "TIFF", exif=_held(6)),
        "png turned behind its pixels": _noted_late(saved(noisy()), _held(6)),
        "palette": saved(noisy(mode="P")),
        "palette with a transparent color": saved(noisy(mode="P"), transparency=3),
        "gif": saved(noisy(mode="P"), "GIF"),
        "bmp": saved(noisy(), "BMP"),
        "tiff": saved(noisy(), "TIFF", compression="tiff_lzw"),
        "cmyk jpeg": saved(noisy(mode="CMYK"), "JPEG"),
        "cmyk tiff": saved(noisy(mode="CMYK"), "TIFF"),
        "lab": saved(noisy(mode="LAB"), "TIFF"),
        "16 bits gray": saved(Image.new("I;16", (8, 6), 200)),
        "16 bits color": _png_of_16_bits(),
        "phone": saved(noisy(), "MPO", save_all=True, append_images=[noisy(8, 8)], exif=_held(6)),
        "one bit": saved(noisy(mode="1")),
        "gray": saved(noisy(mode="L"), "JPEG"),
    }


def turned_jpeg(orientation: int, width: int = 20, height: int = 12) -> bytes:
    """A JPEG whose note on orientation (EXIF) is a number from 1 to 8."""
    return saved(noisy(width, height), "JPEG", exif=_held(orientation))


def _held(orientation: int) -> Image.Exif:
    notes = Image.Exif()
    notes[0x0112] = orientation
    return notes


def _noted_late(png: bytes, notes: Image.Exif) -> bytes:
    """A PNG with its notes behind the pixels, as some programs write them."""
    end = png.rindex(b"IEND") - 4
    return png[:end] + _png_chunk(b"eXIf", notes.tobytes().removeprefix(b"Exif\0\0")) + png[end:]


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def _png(width: int, height: int, depth: int, rows: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _png_chunk(b"IHDR", header)
        + _png_chunk(b"IDAT", zlib.compress(rows))
        + _png_chunk(b"IEND", b"")
    )


def _png_of_16_bits() -> bytes:
    return _png(4, 4, 16, (b"\0" + bytes(range(24))) * 4)


def _bomb() -> bytes:
    """A hundred bytes that say they are 10 billion pixels."""
    return _png(100_000, 100_000, 8, b"\0" * 1000)
