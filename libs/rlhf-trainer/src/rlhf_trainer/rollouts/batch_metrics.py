"""Numbers of a rollout batch: rewards, lengths, staleness, and the metrics that its samples report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.metric import Metric, Metrics
from rlhf_core.batch.task import Task
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.errors import RolloutError

from ..durable.ledger import Groups, groups_of


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
            "(--rollout.max_staleness): the engine served older weights than the last ones that it was given. Go on "
            "from the newest checkpoint with --resume auto; if it happens again, the engine loses updates"
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
