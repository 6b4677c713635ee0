"""Estimates of a prompt's response length, from the last time it was played; the longest are started first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_core.batch.task import Task
from rlhf_core.batch.trajectory_columns import TrajectoryColumns


class LengthEstimates:
    """Mean number of action tokens of each prompt's episodes when it was last finished."""

    def __init__(self) -> None:
        self._mean: dict[int, int] = {}

    def note(self, batch: TrajectoryColumns) -> None:
        """Remember the lengths of finished groups."""
        group = batch.group
        totals = np.bincount(group, weights=batch.num_actions)
        first = np.unique(batch.episode, return_index=True)[1]  # (E,) a row of each episode
        means = totals / np.bincount(group[first])
        prompts = batch.uid[np.unique(group, return_index=True)[1], 1]
        self._mean.update(zip(prompts.tolist(), means.round().astype(int).tolist(), strict=True))

    def longest_first(self, tasks: Sequence[Task]) -> list[int]:
        """Return indices of ``tasks``: known ones by falling length, then those never seen, in the order given."""
        return sorted(
            range(len(tasks)), key=lambda index: -self._mean.get(tasks[index].uid.prompt, 0)
        )

    def to_json(self) -> dict[str, int]:
        return {str(prompt): mean for prompt, mean in self._mean.items()}

    def load(self, values: Mapping[str, int]) -> None:
        """Take over the values that ``to_json`` returned."""
        self._mean = {int(prompt): mean for prompt, mean in values.items()}
