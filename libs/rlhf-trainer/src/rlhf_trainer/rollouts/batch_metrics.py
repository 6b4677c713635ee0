"""Metrics of a rollout batch: rewards, lengths, and the metrics that its samples report. Samples are episodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.metric import Metric, Metrics
from rlhf_core.batch.trajectory_columns import TrajectoryColumns


def batch_metrics(batch: TrajectoryColumns) -> Metrics:
    """Return means over samples, and totals. A metric that only some samples report is averaged over those.

    A sample is an episode: length = sum over its rows, truncated = any of them, reward and metrics = mean over them.
    """
    episode = batch.episode
    rewards = per_episode(batch.total_reward, episode)
    lengths = np.bincount(episode, weights=batch.num_actions)
    truncated = np.bincount(episode, weights=batch.truncated) > 0
    count = len(lengths)
    metrics = {
        "reward/mean": Metric(float(rewards.sum()), count),
        "reward/std": Metric(float(rewards.std())),
        "response/length_mean": Metric(float(lengths.sum()), count),
        "response/length_max": Metric(float(lengths.max()), reduction="max"),
        "response/truncated": Metric(float(truncated.sum()), count),
        "rollout/tokens": Metric(float(batch.num_tokens.sum()), reduction="sum"),
        "rollout/samples": Metric(float(count), reduction="sum"),
    }
    if count < len(batch):
        metrics["rollout/rows"] = Metric(float(len(batch)), reduction="sum")
    return metrics | named_metrics(batch)


def named_metrics(batch: TrajectoryColumns) -> Metrics:
    """Return ``reward/NAME`` for each reward, and ``rollout/NAME`` for each metric that rewards, the environment and
    the executor report, as means over the episodes that have it."""
    metrics: Metrics = {}
    named = {f"reward/{name}": column for name, column in batch.rewards.items()}
    named |= {f"rollout/{name}": column for name, column in batch.metrics.items()}
    for name, column in named.items():
        present = ~np.isnan(column)
        values = per_episode(
            column[present], np.unique(batch.episode[present], return_inverse=True)[1]
        )
        metrics[name] = Metric(float(values.sum()), len(values))
    return metrics


def per_episode(values: NDArray[np.float32], episode: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (E,) the mean of the values of each episode's rows, in float64.

    Args:
        values: (B,)
        episode: (B,) dense index 0..E-1.
    """
    rows = np.bincount(episode)
    # Weights of a single row are not divided, so that its number stays as it is.
    sums = np.bincount(episode, weights=values.astype(np.float64))
    return np.asarray(np.where(rows > 1, sums / np.maximum(rows, 1), sums), dtype=np.float64)
