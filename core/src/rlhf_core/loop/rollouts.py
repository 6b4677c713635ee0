"""One step's rollouts: draw prompts, run their episodes, shape, filter, and replace what was filtered out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..contracts.metric import Metric, Metrics, merge_metrics
from ..contracts.reward import RewardShaper, RolloutInfo, SampleFilter
from ..contracts.task import Task
from ..contracts.trajectory import Trajectory, TrajectoryColumns
from .cursor import Cursor
from .episodes import EpisodeRunner
from .ledger import Ledger, groups_of


@dataclass(slots=True, kw_only=True)
class Rollouts:
    """What one step has to train on."""

    batch: TrajectoryColumns | None
    """None when nothing survived."""
    metrics: Metrics = field(default_factory=dict)
    generate_s: float = 0.0
    reward_s: float = 0.0
    """Time spent waiting for rewards after generation had ended."""


class RolloutSource:
    """Produces rollout batches: episodes, shaped and filtered, until a step has as many groups as it wants."""

    def __init__(
        self,
        episodes: EpisodeRunner,
        *,
        shapers: Sequence[RewardShaper] = (),
        filters: Sequence[SampleFilter] = (),
    ) -> None:
        self._episodes = episodes
        self._shapers = shapers
        self._filters = filters

    async def take(
        self,
        step: int,
        cursor: Cursor,
        num_prompts: int,
        *,
        max_refills: int,
        version: int,
        ledger: Ledger,
    ) -> Rollouts:
        """Return a batch of ``num_prompts`` groups, or fewer when the data or the refills ran out."""
        kept: list[TrajectoryColumns] = []
        rollouts = Rollouts(batch=None)
        parts: list[Metrics] = []
        info = RolloutInfo(
            step=step,
            version=version,
            max_new_tokens=self._episodes.context.sampling.max_new_tokens,
            max_length=self._episodes.context.max_length,
        )
        num_samples = len(self._episodes.samples)
        missing = num_prompts
        draws = 0
        while missing and draws <= max_refills:
            tasks = cursor.take(missing)
            if not tasks:
                break
            draws += 1
            ledger.planned(step, {(task.uid.epoch, task.uid.prompt): num_samples for task in tasks})
            scored = await self._episodes.run(tasks, step)
            rollouts.generate_s += scored.generate_s
            rollouts.reward_s += scored.reward_s
            for reason, lost in scored.dropped.items():
                ledger.dropped(step, _groups(lost, num_samples), reason=reason)
                parts.append(
                    {f"filter/dropped_groups/{reason}": Metric(len(lost), reduction="sum")}
                )
            batch, filtered = self._shape_and_filter(scored.trajectories, info, ledger, parts)
            if batch is not None:
                kept.append(batch)
            missing = filtered
        if self._filters:
            parts.append({"filter/refills": Metric(max(draws - 1, 0), reduction="sum")})
        rollouts.metrics = merge_metrics(parts)
        rollouts.batch = _join(kept)
        if rollouts.batch is not None:
            ledger.trained(step, groups_of(rollouts.batch.uids()), version=version)
            rollouts.metrics |= _batch_metrics(rollouts.batch)
        return rollouts

    def _shape_and_filter(
        self,
        trajectories: list[Trajectory],
        info: RolloutInfo,
        ledger: Ledger,
        parts: list[Metrics],
    ) -> tuple[TrajectoryColumns | None, int]:
        """Return what is kept, and how many groups the filters dropped."""
        if not trajectories:
            return None, 0
        batch = TrajectoryColumns.from_trajectories(trajectories)
        for shaper in self._shapers:
            batch, metrics = shaper.shape(batch, info)
            parts.append(metrics)
        if not self._filters:
            return batch, 0
        group = batch.group
        keep = np.ones(len(batch), dtype=bool)
        num_dropped = 0
        for index in range(int(group.max()) + 1):
            rows = np.flatnonzero(group == index)
            one = batch.select(rows)
            reason = next(
                (why for f in self._filters if (why := f.keep(one, info)) is not None), None
            )
            if reason is not None:
                keep[rows] = False
                num_dropped += 1
                ledger.dropped(info.step, groups_of(one.uids()), reason=reason)
                parts.append({f"filter/dropped_groups/{reason}": Metric(1, reduction="sum")})
        kept = np.flatnonzero(keep)
        return (batch.select(kept) if len(kept) else None), num_dropped


def _groups(tasks: Sequence[Task], num_samples: int) -> dict[tuple[int, int], int]:
    return {(task.uid.epoch, task.uid.prompt): num_samples for task in tasks}


def _join(parts: Sequence[TrajectoryColumns]) -> TrajectoryColumns | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else TrajectoryColumns.concatenate(parts)


def _batch_metrics(batch: TrajectoryColumns) -> Metrics:
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
