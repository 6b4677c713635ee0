"""Scenes of a few shapes, one in a quarter each, and their images."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

COLORS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 80, 230),
    "yellow": (240, 210, 40),
    "purple": (150, 50, 190),
    "orange": (245, 140, 30),
}
KINDS = ("circle", "square", "triangle")
PLACES = ("top left", "top right", "bottom left", "bottom right")
GRAY = (150, 150, 150)
WHITE = (255, 255, 255)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Shapes of one color and kind, and gray ones."""

    color: str
    kind: str
    places: tuple[int, ...]
    """Quarters that have a shape, by their index in ``PLACES``."""
    gray: tuple[int, ...] = ()
    """Quarters that have a gray square."""

    @classmethod
    def drawn(
        cls,
        draw: random.Random,
        *,
        colors: int,
        most: int,
        distractors: int,
        held_out: bool | None = None,
    ) -> Scene:
        """Return a random scene; its color and the number of its shapes are evenly distributed.

        Args:
            held_out: draw among the scenes that are held out, or among the others; None: among all.
        """
        count, color = draw.randint(1, most), draw.choice(list(COLORS)[:colors])
        while True:
            quarters = draw.sample(range(4), count + distractors)
            scene = cls(
                color=color,
                kind=draw.choice(KINDS),
                places=tuple(sorted(quarters[:count])),
                gray=tuple(sorted(quarters[count:])),
            )
            if held_out in (None, scene.is_held_out):
                return scene

    @property
    def is_held_out(self) -> bool:
        """Whether the scene is for evaluation alone: about a quarter of the arrangements of each number of shapes, in
        every color. So a color cannot be told from what was held out."""
        return (KINDS.index(self.kind) + sum(self.places)) % 4 == 0

    def fields(self) -> dict[str, Any]:
        """Return the scene as plain values; ``of`` inverts it."""
        return {
            "color": self.color,
            "kind": self.kind,
            "places": list(self.places),
            "gray": list(self.gray),
        }

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Scene:
        """Return the scene that ``fields`` wrote."""
        return cls(
            color=fields["color"],
            kind=fields["kind"],
            places=tuple(fields["places"]),
            gray=tuple(fields["gray"]),
        )

    def image(self, size: int, *, in_gray: bool = False) -> Image:
        """Return the scene as an image of ``size`` by ``size`` pixels; ``in_gray`` hides its color."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (size, size), WHITE)
        canvas = ImageDraw.Draw(image)
        for place in self.gray:
            _draw(canvas, "square", place, size, GRAY)
        for place in self.places:
            _draw(canvas, self.kind, place, size, GRAY if in_gray else COLORS[self.color])
        return image

    def part(self, place: int, size: int) -> Image:
        """Return one quarter of the scene in color, enlarged to ``size`` by ``size`` pixels."""
        left, top = _corner(place, size)
        half = size // 2
        return self.image(size).crop((left, top, left + half, top + half)).resize((size, size))


def _corner(place: int, size: int) -> tuple[int, int]:
    return (place % 2) * (size // 2), (place // 2) * (size // 2)


def _draw(canvas: Any, kind: str, place: int, size: int, color: tuple[int, int, int]) -> None:
    left, top = _corner(place, size)
    margin = size // 16
    low = (left + margin, top + margin)
    high = (left + size // 2 - margin - 1, top + size // 2 - margin - 1)
    match kind:
        case "circle":
            canvas.ellipse((low, high), fill=color)
        case "square":
            canvas.rectangle((low, high), fill=color)
        case _:
            middle = (low[0] + high[0]) // 2
            canvas.polygon([(middle, low[1]), high, (low[0], high[1])], fill=color)
