"""The table of ``rlhf show RUN --metrics``: first, last, lowest and highest value of metrics, with their steps."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.errors import ConfigError

Point = tuple[int, float]
"""A step and a value."""
_HEAD = ("metric", "first", "last", "lowest", "highest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Course of a metric over a run."""

    name: str
    first: Point
    last: Point
    lowest: Point | None
    """The first step with the lowest of its finite values; None: it has none."""
    highest: Point | None

    @property
    def points(self) -> tuple[Point | None, ...]:
        return self.first, self.last, self.lowest, self.highest

    def to_json(self) -> str:
        """Return an object: the name, and pairs of step and value, with null for a value that is not finite."""
        pairs = {
            name: None
            if point is None
            else [point[0], point[1] if math.isfinite(point[1]) else None]
            for name, point in zip(_HEAD[1:], self.points, strict=True)
        }
        return json.dumps({"metric": self.name, **pairs})


def courses_of(records: Iterable[Mapping[str, Any]], words: str, run: str) -> list[Course]:
    """Return the courses of metrics, in the order of ``words`` and then in that of the records.

    Args:
        words: names, or parts of names, with commas between them. A whole name means this metric alone.
        run: name of the run, for messages.

    Raises:
        ConfigError: a word is empty, or is in the name of no metric.
    """
    points: dict[str, list[Point]] = {}
    for record in records:
        for section in ("metrics", "eval"):
            for name, value in record.get(section, {}).items():
                if isinstance(value, int | float):
                    points.setdefault(name, []).append((record["step"], float(value)))
    return [_course(name, points[name]) for name in _chosen(words, list(points), run)]


def table_of(courses: Sequence[Course]) -> list[str]:
    """Return the lines of the table, with columns below each other."""
    cells = [_HEAD, *((course.name, *map(_shown, course.points)) for course in courses)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEAD))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]


def _chosen(words: str, names: Sequence[str], run: str) -> list[str]:
    chosen: dict[str, None] = {}
    for word in words.split(","):
        if not (sought := word.strip()):
            raise ConfigError(
                f"--metrics {words}: expected names of metrics, or parts of them, such as reward/mean,kl"
            )
        found = [sought] if sought in names else [name for name in names if sought in name]
        if not found:
            near = difflib.get_close_matches(sought, names, n=3, cutoff=0.4) or list(names[:3])
            fix = f"Did you mean {', '.join(near)}?" if near else "It has finished no step yet."
            raise ConfigError(f"--metrics {sought}: {run} has no such metric. {fix}")
        chosen |= dict.fromkeys(found)
    return list(chosen)


def _course(name: str, points: Sequence[Point]) -> Course:
    finite = [point for point in points if math.isfinite(point[1])]
    return Course(
        name=name,
        first=points[0],
        last=points[-1],
        lowest=min(finite, key=lambda point: point[1], default=None),
        highest=max(finite, key=lambda point: point[1], default=None),
    )


def _shown(point: Point | None) -> str:
    return "-" if point is None else f"{point[1]:.4g} ({point[0]})"
