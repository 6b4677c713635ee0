"""Images of noise, for models with random weights: what is measured is how long reading them takes."""

from __future__ import annotations

from pathlib import Path


def write_pictures(folder: Path, number: int, side: int) -> list[Path]:
    """Write ``number`` different square images of ``side`` pixels into ``folder``, and return their files."""
    import numpy
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    draw = numpy.random.default_rng(0)
    files = [folder / f"{index}.png" for index in range(number)]
    for file in files:
        pixels = draw.integers(0, 256, size=(side, side, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).save(file, compress_level=1)
    return files
