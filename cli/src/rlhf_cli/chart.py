"""A metric over steps as a small chart of characters: dots of braille on a terminal that has them, else ASCII."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from .metrics_table import Point

HEIGHT = 8
"""Number of lines of the chart, without its axis."""
_NARROWEST = 10
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the dots of a character of braille, by row and column."""

Dot = tuple[int, int]


def chart(points: Sequence[Point], width: int, *, braille: bool) -> list[str]:
    """Return the lines of a chart, at most ``width`` characters wide where that is enough for ten characters.

    Consecutive points are joined; a value that is not finite is a gap. Of a step that was done twice the later value
    counts.

    Args:
        braille: whether characters hold two by four dots; if not, each is one dot in ASCII.
    """
    values = dict(sorted(dict(points).items()))
    finite = {step: value for step, value in values.items() if math.isfinite(value)}
    if not finite:
        return ["no value is finite"]
    low, high = min(finite.values()), max(finite.values())
    edge = [f"{value:.4g}" for value in (high, low)]
    margin = max(map(len, (*edge, "step")))
    columns = max(width - margin - 2, _NARROWEST)
    across, down = (columns * 2 - 1, HEIGHT * 4 - 1) if braille else (columns - 1, HEIGHT - 1)
    first, last = min(finite), max(finite)
    places: list[Dot | None] = [
        # Halves, because the difference of two large numbers may be none.
        (
            round((step - first) / (last - first or 1) * across),
            round((high / 2 - value / 2) / (high / 2 - low / 2 or 1) * down),
        )
        if math.isfinite(value)
        else None
        for step, value in values.items()
    ]
    dots = set(_joined(places))
    rows = [_row(dots, row, columns, braille=braille) for row in range(HEIGHT)]
    names = [edge[0], *[""] * (HEIGHT - 2), edge[1]]
    lines = [f"{name:>{margin}} |{row}".rstrip() for name, row in zip(names, rows, strict=True)]
    ends = f"{first}{last:>{max(columns - len(str(first)), 1)}}" if last > first else str(first)
    return [*lines, f"{'step':>{margin}}  {ends}"]


def _joined(places: Sequence[Dot | None]) -> Iterator[Dot]:
    yield from (place for place in places if place is not None)
    for one, other in pairwise(places):
        if one is not None and other is not None:
            count = max(abs(other[0] - one[0]), abs(other[1] - one[1]), 1)
            for part in range(count):
                along = [round(a + (b - a) * part / count) for a, b in zip(one, other, strict=True)]
                yield along[0], along[1]


def _row(dots: set[Dot], row: int, columns: int, *, braille: bool) -> str:
    if not braille:
        return "".join("*" if (column, row) in dots else " " for column in range(columns))
    cells = (
        sum(
            bit
            for y, bits in enumerate(_DOTS)
            for x, bit in enumerate(bits)
            if (column * 2 + x, row * 4 + y) in dots
        )
        for column in range(columns)
    )
    return "".join(chr(0x2800 + cell) if cell else " " for cell in cells)
