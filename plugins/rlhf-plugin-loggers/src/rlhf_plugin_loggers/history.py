"""A run's past, read back from ``metrics.jsonl``: what a resumed run did before is there as well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .wording import headlines

REWARD = "reward/mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric over the run; the three have the same length."""

    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    """Of training, over all processes of the run."""
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What the curve and the summary show."""

    reward: Series
    """Mean reward of each step's rollouts; empty when there are none."""
    evals: Mapping[str, Series]
    """The headline metric of each evaluation set and temperature, by its full name."""


def read_history(path: Path) -> History:
    """Read ``metrics.jsonl``. Steps without a metric are left out of its series.

    A missing file gives an empty history: a run that failed before its first step has none.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    points: dict[str, list[tuple[int, float, float]]] = {}
    for record in map(json.loads, lines):
        values = {REWARD: record["metrics"].get(REWARD)} if "metrics" in record else record["eval"]
        for name, value in values.items():
            if value is not None:
                points.setdefault(name, []).append((record["step"], record["time_s"], value))
    reward = _series(points.pop(REWARD, []))
    return History(reward=reward, evals={name: _series(points[name]) for name in headlines(points)})


def _series(points: list[tuple[int, float, float]]) -> Series:
    return Series(
        steps=tuple(point[0] for point in points),
        seconds=tuple(point[1] for point in points),
        values=tuple(point[2] for point in points),
    )
