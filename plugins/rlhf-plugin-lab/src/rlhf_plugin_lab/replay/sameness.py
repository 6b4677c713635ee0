"""Differences of a span that was done again without a change: metrics of every step, and files of checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..recorded.metrics import Metrics
from .span import Span, checkpoints_of, digests_of

_OTHERWISE = ("timing/", "eval/")
"""Beginnings of the names of numbers that no step's learning is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCheck:
    """Comparison of one step with its record."""

    step: int
    compared: int
    """Number of metrics that were compared; 0: the run recorded none of this step."""
    metric: str = ""
    """First metric, in the record's order, that differs, with both values; empty: none does."""
    files: int | None = None
    """Number of files of the checkpoint's roles that were compared; None: the run has no checkpoint of this step."""
    file: str = ""
    """First of them that differs; empty: none does."""

    @property
    def same(self) -> bool:
        """True where nothing differs."""
        return not self.metric and not self.file

    @property
    def known(self) -> bool:
        """True where the run has anything of the step to compare with."""
        return self.compared > 0 or self.files is not None


def checks_of(
    span: Span, again: Metrics, folder: Path, *, without: tuple[str, ...] = ()
) -> list[StepCheck]:
    """Return a comparison of each step of the span with the run's record.

    Args:
        again: metrics of the replay.
        folder: the replay's run folder.
        without: beginnings of the names of metrics that are not compared.
    """
    replayed = checkpoints_of(folder)
    checks = []
    for step in range(span.first, span.last + 1):
        was, now = (
            {
                name: value
                for name, value in values_at(each, step).items()
                if not name.startswith(without)
            }
            for each in (span.metrics, again)
        )
        names = was | now if was else {}  # a step without a record has nothing that could differ
        metric = next((_shown(name, was, now) for name in names if _differ(name, was, now)), "")
        files, file = None, ""
        if step in span.digests and step in replayed:
            old, new = span.digests[step], digests_of(replayed[step])
            files = len(old)
            file = next((name for name in old | new if old.get(name) != new.get(name)), "")
        checks.append(
            StepCheck(step=step, compared=len(was), metric=metric, files=files, file=file)
        )
    return checks


def values_at(metrics: Metrics, step: int) -> dict[str, float | None]:
    """Return what was recorded of a step's learning; None for a value that is NaN or infinite."""
    found = {}
    for name, series in metrics.series.items():
        if not name.startswith(_OTHERWISE) and step in series.steps:
            found[name] = series.values[series.steps.index(step)]
    return found


def _differ(name: str, was: dict[str, float | None], now: dict[str, float | None]) -> bool:
    return name not in was or name not in now or was[name] != now[name]


def _shown(name: str, was: dict[str, float | None], now: dict[str, float | None]) -> str:
    def text(values: dict[str, float | None]) -> str:
        return json.dumps(values[name]) if name in values else "absent"

    return f"{name} (recorded {text(was)}, now {text(now)})"
