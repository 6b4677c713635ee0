"""The table of ``rlhf show RUN --metrics``: first, last, lowest and highest value of metrics, with their steps."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.errors import ConfigError

from .tables import Column, Parts, Table

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


def series_of(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """Return the points of every metric by its name, of steps and of evaluations, in the order of the records."""
    points: dict[str, list[Point]] = {}
    for record in records:
        for section in ("metrics", "eval"):
            for name, value in record.get(section, {}).items():
                if isinstance(value, int | float):
                    points.setdefault(name, []).append((record["step"], float(value)))
    return points


def courses_of(records: Iterable[Mapping[str, Any]], words: str, run: str) -> list[Course]:
    """Return the courses of metrics, in the order of ``words`` and then in that of the records.

    Args:
        words, run: see ``chosen``.

    Raises:
        ConfigError: a word is empty, or is in the name of no metric.
    """
    points = series_of(records)
    return [course_of(name, points[name]) for name in chosen(words, list(points), run)]


def table_of(courses: Sequence[Course]) -> Table:
    """Return the table, with a row for each metric."""
    columns = [Column("metric"), *(point_column(name) for name in _HEAD[1:])]
    return Table(columns, [(course.name, *map(point_cell, course.points)) for course in courses])


def point_column(name: str) -> Column:
    """Return the column of values with their steps."""
    return Column(name, parts=("", "step"), right=True)


def point_cell(point: Point | None) -> Parts | None:
    """Return a value with its step as a cell, such as ``0.25 (3)``."""
    return point and Parts(f"{point[1]:.4g} ({point[0]})", (point[1], point[0]))


def chosen(words: str, names: Sequence[str], run: str) -> list[str]:
    """Return the names that are meant, in the order of ``words`` and then in their own.

    Args:
        words: names, or parts of names, with commas between them. A whole name means this metric alone.
        run: name of the run, for messages.

    Raises:
        ConfigError: a word is empty, or is in no name.
    """
    meant: dict[str, None] = {}
    for word in words.split(","):
        if not (sought := word.strip()):
            raise ConfigError(
                f"--metrics {words}: expected names of metrics, or parts of them, such as reward/mean,kl",
                code="usage/names-of-metrics",
            )
        found = [sought] if sought in names else [name for name in names if sought in name]
        if not found:
            near = difflib.get_close_matches(sought, names, n=3, cutoff=0.4) or list(names[:3])
            fix = f"Did you mean {', '.join(near)}?" if near else "It has finished no step yet."
            raise ConfigError(
                f"--metrics {sought}: {run} has no such metric. {fix}", code="metric/unknown"
            )
        meant |= dict.fromkeys(found)
    return list(meant)


def course_of(name: str, points: Sequence[Point]) -> Course:
    """Return the course of a metric that has these points, of which there is one at least."""
    finite = [point for point in points if math.isfinite(point[1])]
    return Course(
        name=name,
        first=points[0],
        last=points[-1],
        lowest=min(finite, key=lambda point: point[1], default=None),
        highest=max(finite, key=lambda point: point[1], default=None),
    )
