"""Images for tests: good ones, and one of each kind that is refused."""

import io
import struct
import zlib

from PIL import Image

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


def noisy(width: int = 20, height: int = 12, mode: str = "RGB") -> Image.Image:
    """An image whose pixels do not compress to nothing."""
    pixels = bytes((31 * i * i + 7 * i) % 251 for i in range(width * height * 3))
    return Image.frombytes("RGB", (width, height), pixels).convert(mode)


def refused() -> dict[str, tuple[bytes, str]]:
    """Name -> bytes, and what the reason says."""
    frames = [noisy(), noisy().transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    whole, jpeg = saved(noisy(64, 64)), saved(noisy(64, 64), "JPEG")
    return {
        "empty": (b"", "no bytes"),
        "text": (b"not an image at all", "not a whole PNG, JPEG or WebP"),
        "gif": (saved(noisy(), "GIF"), "not a whole PNG, JPEG or WebP"),
        "truncated png": (whole[: len(whole) * 2 // 3], "cannot be decoded"),
        "truncated jpeg": (jpeg[: len(jpeg) * 2 // 3], "cannot be decoded"),
        "header alone": (whole[:20], "not a whole PNG|cannot be decoded"),
        "animated webp": (
            saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True),
            "2 frames",
        ),
        "animated png": (
            saved(frames[0], save_all=True, append_images=frames[1:]),
            "2 frames",
        ),
        "cmyk": (saved(noisy(mode="CMYK"), "JPEG"), "CMYK"),
        "palette": (saved(noisy(mode="P")), "palette"),
        "16 bits gray": (saved(Image.new("I;16", (8, 8), 40000)), "more than 8 bits"),
        "16 bits color": (_png_of_16_bits(), "16 bits a channel"),
        "one pixel": (saved(Image.new("RGB", (1, 1))), "1 x 1 pixels; expected at least 2 x 2"),
        "one column": (saved(Image.new("RGB", (1, 50))), "1 x 50"),
        "huge": (
            saved(Image.new("L", (5000, 5000))),
            r"5000 x 5000 pixels, --data.max_image_pixels",
        ),
        "bomb": (_bomb(), "pixels"),
    }


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
