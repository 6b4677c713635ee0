"""Staleness of a batch: the version that is trained minus the version that sampled a token."""

from __future__ import annotations

import numpy as np

from rlhf_core.batch.metric import Metric, Metrics
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.errors import RolloutError

from ..durable.ledger import Groups, groups_of

STALE = "stale"
"""Reason for dropping a group that would be too old for the next step; a filter of plugins gives the same reason."""
LEFT_OVER = "left_over"
"""Reason for dropping a group that no step is left for."""


def staleness_metrics(batch: TrajectoryColumns, version: int, max_staleness: int) -> Metrics:
    """Return mean and maximum over action tokens, and the share of tokens at each staleness up to the bound.

    Raises:
        RolloutError: a token is older than the bound allows, because the engine served outdated weights.
    """
    oldest = version - int(batch.oldest_version.min())
    if oldest > max_staleness:
        row = int(batch.oldest_version.argmin())
        uid = ".".join(map(str, batch.uid[row].tolist()))
        raise RolloutError(
            f"sample {uid} has a token of weights {oldest} versions old, expected at most {max_staleness} "
            "(--rollout.max_staleness): the engine served older weights than the last ones that it was given"
        )
    if not max_staleness:
        return {}
    counts, widest = batch.version_counts, batch.version_counts.shape[1]
    staleness = version - batch.oldest_version[:, None] - np.arange(widest)  # (B, W)
    count = float(counts.sum())
    metrics: Metrics = {
        "rollout/staleness_mean": Metric(float((staleness * counts).sum()), count),
        "rollout/staleness_max": Metric(float(oldest), reduction="max"),
    }
    for age in range(max_staleness + 1):
        metrics[f"rollout/staleness_{age}"] = Metric(float(counts[staleness == age].sum()), count)
    return metrics


def groups_by_version(batch: TrajectoryColumns) -> dict[int, Groups]:
    """Return the groups of a batch by the version of their oldest token."""
    group = batch.group
    oldest_of_group = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(oldest_of_group, group, batch.oldest_version)
    found: dict[int, Groups] = {}
    for version in np.unique(oldest_of_group).tolist():
        rows = np.flatnonzero(oldest_of_group[group] == version)
        found[version] = groups_of(batch.select(rows).uids())
    return found
