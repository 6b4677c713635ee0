"""Metrics of a rollout batch: rewards, lengths, and the metrics that its samples report."""

from __future__ import annotations

import numpy as np

from ..batch.metric import Metric, Metrics
from ..batch.trajectory_columns import TrajectoryColumns


def batch_metrics(batch: TrajectoryColumns) -> Metrics:
    """Return means over samples, and totals. A metric that only some samples report is averaged over those."""
    rewards = batch.total_reward.astype(np.float64)
    lengths = batch.num_actions
    metrics = {
        "reward/mean": Metric(float(rewards.sum()), len(batch)),
        "reward/std": Metric(float(rewards.std())),
        "response/length_mean": Metric(float(lengths.sum()), len(batch)),
        "response/length_max": Metric(float(lengths.max()), reduction="max"),
        "response/truncated": Metric(float(batch.truncated.sum()), len(batch)),
        "rollout/tokens": Metric(float(batch.num_tokens.sum()), reduction="sum"),
        "rollout/samples": Metric(float(len(batch)), reduction="sum"),
    }
    named = {f"reward/{name}": column for name, column in batch.rewards.items()}
    named |= {f"rollout/{name}": column for name, column in batch.metrics.items()}
    for name, column in named.items():
        present = column[~np.isnan(column)].astype(np.float64)
        metrics[name] = Metric(float(present.sum()), len(present))
    return metrics
