"""Metrics of a run: a series for each name, from ``metrics.jsonl``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from .lines import lines_of, step_of
from .problems import Problems

_SECTIONS = {"metrics": "", "eval": "", "timing": "timing/"}
"""Section of a record -> what stands in front of its names."""


@dataclass(slots=True)
class Series:
    """Values of one metric; the lists have the same length."""

    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Seconds of training before each value."""
    values: list[float | None] = field(default_factory=list)
    """Values; None for one that was NaN or infinite."""

    def points(self) -> list[tuple[int, float]]:
        """Return the steps with a finite value, and these."""
        pairs = zip(self.steps, self.values, strict=True)
        return [(step, value) for step, value in pairs if value is not None]

    def finite(self) -> list[float]:
        return [value for value in self.values if value is not None]


@dataclass(slots=True)
class Metrics:
    """Everything that ``metrics.jsonl`` says."""

    series: dict[str, Series] = field(default_factory=dict)
    last_step: int = 0
    end: str = ""
    """Who ended the run before its last step, and why; empty: nobody."""


def read_metrics(path: Path, problems: Problems) -> Metrics:
    """Return the metrics of a run. A step that is there twice counts as its later record says.

    A file that is not there gives no metrics, and a note.
    """
    found = Metrics()
    for line in lines_of(path, problems):
        record, step = line.value, step_of(line.value)
        if step is None:
            problems.note(f"lines of {path.name} without a step are left out")
            continue
        if isinstance(record.get("end"), str):
            found.end = record["end"]
        elif step > found.last_step:
            found.end = ""
        found.last_step = max(found.last_step, step)
        seconds = record.get("time_s")
        when = float(seconds) if isinstance(seconds, int | float) else math.nan
        for section, prefix in _SECTIONS.items():
            values = record.get(section)
            for name, value in values.items() if isinstance(values, dict) else ():
                _add(found.series.setdefault(prefix + name, Series()), step, when, value, problems)
    return found


def _add(series: Series, step: int, seconds: float, value: object, problems: Problems) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        problems.note("metrics that are no numbers are left out")
        return
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        problems.note("values of metrics are NaN or infinite, gaps of their curves")
    shown = number if math.isfinite(number) else None
    while series.steps and series.steps[-1] >= step:  # a resumed run did the step again
        for column in (series.steps, series.seconds, series.values):
            column.pop()
    series.steps.append(step)
    series.seconds.append(seconds if math.isfinite(seconds) else 0.0)
    series.values.append(shown)
