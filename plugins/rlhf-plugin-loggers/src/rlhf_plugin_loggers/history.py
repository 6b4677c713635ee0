"""The history of a run, read back from ``metrics.jsonl``, which includes the steps before a resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.outside.json_reader import parse_object

from .wording import headlines, learned_fields

REWARD = "reward/mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The values of one metric over the run. ``steps``, ``seconds`` and ``values`` have the same length."""

    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    """Seconds of training before each value, over all processes of the run."""
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The metrics that the curve and the summary show."""

    reward: Series
    """Mean reward of each step's rollouts; empty if the run has no rollouts."""
    learned: Mapping[str, Series]
    """Loss, accuracy and KL from the teacher of each step's rows, by label; empty if the run has rollouts."""
    evals: Mapping[str, Series]
    """Headline metric of each evaluation set and temperature, by the metric's full name."""


def read_history(path: Path) -> History:
    """Return the history in a file ``metrics.jsonl``. A metric's series has no entry for a step without this metric.

    A missing file gives an empty history: a run that failed before its first step has no file. A last line without an
    end is left out: a run is writing it, or was killed.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    points: dict[str, list[tuple[int, float, float]]] = {}
    for record in map(parse_object, lines):
        values = _wanted(record["metrics"]) if "metrics" in record else record.get("eval", {})
        for name, value in values.items():
            if value is not None:
                points.setdefault(name, []).append((record["step"], record["time_s"], value))
    reward = _series(points.pop(REWARD, []))
    learned = [] if reward.values else learned_fields(points)
    return History(
        reward=reward,
        learned={field.label: _series(points[field.metric]) for field in learned},
        evals={name: _series(points[name]) for name in headlines(points)},
    )


def _wanted(metrics: Mapping[str, float]) -> dict[str, float]:
    names = [REWARD, *(field.metric for field in learned_fields(metrics))]
    return {name: metrics[name] for name in names if name in metrics}


def _series(points: list[tuple[int, float, float]]) -> Series:
    return Series(
        steps=tuple(point[0] for point in points),
        seconds=tuple(point[1] for point in points),
        values=tuple(point[2] for point in points),
    )
