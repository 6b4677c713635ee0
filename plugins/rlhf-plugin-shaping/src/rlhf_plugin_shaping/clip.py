"""Cuts what samples earned to a range. It acts on rewards, not on what is left of them after a baseline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlhf_core.contracts import Metric, Metrics, RolloutInfo, TrajectoryColumns

from .config import ClipConfig
from .stateless import Stateless


class Clip(Stateless):
    """Total reward ``min(max(r, low), high)``; what is cut off, or added, is taken from the episode's score.

    Clipping the reward after its group's mean was subtracted, as OpenRLHF does, would depend on the other samples and
    shift the mean away from 0.
    """

    def __init__(self, config: ClipConfig) -> None:
        self.config = config

    def shape(
        self, batch: TrajectoryColumns, info: RolloutInfo
    ) -> tuple[TrajectoryColumns, Metrics]:
        del info
        total = batch.total_reward.astype(np.float64)  # (B,)
        excess = total - np.clip(total, self.config.low, self.config.high)
        metrics = {
            "clip_reward/low": Metric(float((excess < 0).sum()), len(batch)),
            "clip_reward/high": Metric(float((excess > 0).sum()), len(batch)),
        }
        return replace(batch, reward=(batch.reward - excess).astype(np.float32)), metrics
