"""The results of an evaluation as a comparison needs them: the rewards of each task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_core import ConfigError
from rlhf_core.outside.json_reader import parse_object

from ..evaluate.jobs import digest_of
from ..evaluate.options import EPISODES, SUMMARY
from ..evaluate.records import EpisodeRecord
from ..worklist.record_lines import read_records

Cell = tuple[str, float]
"""Name of a set, and a temperature."""
EMPTY = digest_of({})
"""Digest of a task that is its seed alone."""


@dataclass(slots=True, kw_only=True)
class TaskRewards:
    """Episodes of one task."""

    digest: str
    """Digest of the task's row."""
    rewards: list[float] = field(default_factory=list)
    """Rewards of the episodes that have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResults:
    """A finished evaluation."""

    folder: Path
    model: str
    seed: int
    threshold: float
    """Reward from which its own summary counts an episode as passed."""
    cells: Mapping[Cell, Mapping[str, TaskRewards]]
    """Tasks by name, of each set at each temperature."""


def read_results(folder: Path) -> EvaluationResults:
    """Return the results in a folder.

    Raises:
        ConfigError: it is no folder of a finished evaluation.
        ResumeError: a line of its episodes cannot be read.
    """
    summary = folder / SUMMARY
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: expected the --output of rlhf eval; there is no such folder",
            code="eval/no-results",
        )
    if not summary.is_file() or not (folder / EPISODES).is_file():
        raise ConfigError(
            f"{folder}: expected a finished evaluation, with {SUMMARY} and {EPISODES}. If it was interrupted, the same "
            "rlhf eval command continues it.",
            code="eval/no-results",
        )
    try:
        values = parse_object(summary.read_bytes())
        return EvaluationResults(
            folder=folder,
            model=str(values["model"]),
            seed=int(values["seed"]),
            threshold=float(values["pass_threshold"]),
            cells=_cells(folder / EPISODES),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ConfigError(
            f"{summary}: expected the summary of rlhf eval; it cannot be read: {error!r}",
            code="eval/no-results",
        ) from error


def _cells(episodes: Path) -> dict[Cell, dict[str, TaskRewards]]:
    by_place: dict[Cell, dict[str, tuple[str, TaskRewards]]] = {}
    for episode in read_records(episodes, EpisodeRecord):
        cell = by_place.setdefault((episode.set, episode.temperature), {})
        place = episode.uid.split(".")[1]
        _, task = cell.setdefault(place, (episode.task, TaskRewards(digest=episode.digest)))
        if episode.reward is not None:
            if not math.isfinite(episode.reward):
                raise ValueError(f"{episode.uid}: reward {episode.reward}")
            task.rewards.append(episode.reward)
    return {cell: _by_name(tasks) for cell, tasks in by_place.items()}


def _by_name(tasks: Mapping[str, tuple[str, TaskRewards]]) -> dict[str, TaskRewards]:
    """Return tasks by their names; where several have one name, by the place as well."""
    count = Counter(name for name, _ in tasks.values())
    return {
        name if count[name] == 1 else f"{name} (row {place})": task
        for place, (name, task) in tasks.items()
    }
