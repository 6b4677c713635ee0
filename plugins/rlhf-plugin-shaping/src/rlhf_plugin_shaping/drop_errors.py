"""Drops prompts whose samples ran into errors: a crashed sandbox says nothing about the answer."""

from __future__ import annotations

import numpy as np

from rlhf_core.contracts import RolloutInfo, TrajectoryColumns

from .filter_config import DropErrorsConfig


class DropErrors:
    """Drops a group if more than ``max_share`` of its episodes report a metric above 0 in one of their sequences.

    A sample that does not report the metric has no error.
    """

    def __init__(self, config: DropErrorsConfig) -> None:
        self.config = config

    def keep(self, group: TrajectoryColumns, info: RolloutInfo) -> str | None:
        """Return None or ``errors``."""
        del info
        reported = group.metrics.get(self.config.metric)
        if reported is None:
            return None
        episode = group.episode
        # NaN, which stands where a sample did not report, is not more than 0.
        failed = np.bincount(episode, weights=reported > 0) > 0  # (E,)
        return "errors" if failed.mean() > self.config.max_share else None
