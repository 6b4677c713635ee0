"""Hypothesis on what a model saw: no image, another one, another order of patches, or other numbers for its colors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .case import Case, Gap, Variants
from .pixels import Blind, Order, Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

_FARTHEST = 4
"""Images before and behind an image, in the order of the step, that may have been seen in its place."""
_COLORS: dict[str, dict[str, Any]] = {
    "colors of 0 to 1, not normalized": {"do_normalize": False},
    "colors of 0 to 255, not normalized": {"do_normalize": False, "do_rescale": False},
    "colors of 0 to 255, normalized": {"do_rescale": False},
    "colors normalized by means and deviations of 0.5": {
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    "colors normalized as those of ImageNet": {
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    },
    "colors normalized as those of CLIP": {
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
}


def pixels(case: Case, gap: Gap) -> Variants:
    """Yield readings with other pixels; none for a model that does not see, or sequences without images."""
    own = case.plain.pixels
    if own is None or not any(each.images for each in case.sequences):
        return
    for words, changed in (*_missing(own), *_changed(own), *_others(own, case)):
        yield words, replace(case.plain, pixels=changed)


def _missing(own: Pixels) -> Iterator[tuple[str, Pixels]]:
    yield "no image: embeddings of the tokens that stand for it", replace(own, blind=Blind.PLACES)
    yield "no image: its tokens are read as text", replace(own, blind=Blind.TEXT)
    yield "a gray image: all numbers 0", replace(own, factor=0.0)
    for color, name in ((0, "black"), (255, "white")):
        yield f"a {name} image", replace(own, change=_filled(color))


def _changed(own: Pixels) -> Iterator[tuple[str, Pixels]]:
    for words, options in _COLORS.items():
        yield words, replace(own, processing={**own.processing, **options})
    for words, change in (
        ("red and blue exchanged", _exchanged),
        ("left and right exchanged", _mirrored),
        ("the image upside down", _upside_down),
    ):
        yield words, replace(own, change=change)
    for order in (Order.ROWS, Order.REVERSED, Order.TRANSPOSED):
        yield f"patches in another order: {order}", replace(own, order=order)


def _others(own: Pixels, case: Case) -> Iterator[tuple[str, Pixels]]:
    """Yield what was seen if an image of another row was, of those of the step that have the same size."""
    yield "the images of a sequence in reverse", replace(own, reverse=True)
    seen = list(
        dict.fromkeys(image for each in (case.recorded or case.sequences) for image in each.images)
    )
    sizes = {path: _size(path) for path in seen}
    for distance in (sign * step for step in range(1, _FARTHEST + 1) for sign in (1, -1)):
        instead: dict[Path, Path] = {}
        for at, path in enumerate(seen):
            other = seen[(at + distance) % len(seen)]
            if sizes[other] == sizes[path]:
                instead[path] = other
        if any(path != other for path, other in instead.items()):
            yield (
                f"the image {distance:+d} of the step's images in its place",
                replace(own, instead=instead),
            )


def _size(path: Path) -> tuple[int, int]:
    from PIL import Image as images

    with images.open(path) as image:
        return image.size


def _filled(color: int) -> Callable[[Image], Image]:
    def fill(image: Image) -> Image:
        return image.point(lambda _: color)

    return fill


def _exchanged(image: Image) -> Image:
    from PIL import Image as images

    return images.merge("RGB", image.split()[::-1])


def _mirrored(image: Image) -> Image:
    from PIL import ImageOps

    return ImageOps.mirror(image)


def _upside_down(image: Image) -> Image:
    from PIL import ImageOps

    return ImageOps.flip(image)
