"""Source of rollout batches: draws prompts, has them played, shapes, filters, and replaces groups that were dropped.

If generation may run ahead, prompts of later steps are started meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.metric import Metric, Metrics, merge_metrics
from rlhf_core.batch.task import Task
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.engine import Engine
from rlhf_core.contracts.executor import FinishedGroup, GroupPlayer
from rlhf_core.contracts.reward import RewardShaper, RolloutInfo, SampleFilter

from ..durable.ledger import Groups, Ledger, groups_of
from .batch_metrics import (
    LEFT_OVER,
    STALE,
    LengthEstimates,
    batch_metrics,
    groups_by_version,
    staleness_metrics,
)
from .episodes import EpisodeRunner
from .players import player_for
from .pool import Pool, PooledGroup, WorkDone
from .prompts import Cursor, prompt_results
from .samples import UNSHAPED

_NONE = np.empty(0, dtype=np.int64)

Playing = PooledGroup[FinishedGroup]


@dataclass(slots=True, kw_only=True)
class Rollouts:
    """One step's batch to train on, and how it came about."""

    batch: TrajectoryColumns | None
    """The batch; None when every group was dropped."""
    unjudged: TrajectoryColumns | None = None
    """Groups that were dropped for their rewards, and train what needs no advantages; None: there are none."""
    metrics: Metrics = field(default_factory=dict)
    generate_s: float = 0.0
    """Time that the step spent waiting for generation."""
    reward_s: float = 0.0
    """Time that the step spent waiting for rewards after that."""

    def to_learn(
        self, *, trains_unjudged: bool
    ) -> tuple[TrajectoryColumns, NDArray[np.bool_] | None] | None:
        """Return the rows to learn from, and (B,) whether their rewards count, None where all do; None: nothing came.

        Args:
            trains_unjudged: rows whose rewards do not count train something. Without that there are none of them: a
                step of which no row is left may still imitate given responses.
        """
        if self.unjudged is None or (self.batch is not None and not trains_unjudged):
            return None if self.batch is None else (self.batch, None)
        if not trains_unjudged:
            return self.unjudged.select(_NONE), _NONE.astype(bool)
        if self.batch is None:
            return self.unjudged, np.zeros(len(self.unjudged), dtype=bool)
        whole = TrajectoryColumns.concatenate([self.batch, self.unjudged])
        kept = set(self.batch.uids())
        return whole, np.array([uid in kept for uid in whole.uids()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Limits of how far generation may run ahead of training. The defaults are on-policy."""

    max_staleness: int = 0
    """Maximum difference between the version that is trained and the version that sampled a token."""
    in_flight_updates: bool = False
    """True: weights are swapped under running requests; False: an update waits until no group is being played."""
    spare_prompts: int = 0
    """Prompts that a step starts beyond those that it needs; it takes those that are complete first."""
    concurrency: int | None = None
    """Maximum number of prompts that are played at the same time; None: no limit."""


class RolloutSource:
    """Produces rollout batches: plays, shapes and filters groups until a step has as many as it wants.

    Groups are played by ``groups`` in other processes, or without it by ``episodes`` in this one.

    Prompts are taken in the order in which they were drawn. Without oversampling that order alone bounds the staleness:
    at most ``(1 + max_staleness) * num_prompts`` prompts are in the making while a step waits, and
    ``max_staleness * num_prompts`` while it trains, so a prompt is taken at most ``max_staleness`` steps after its
    start.

    Args:
        judges: those of the filters whose dropped groups still train what needs no advantages (``Rollouts.unjudged``).
    """

    def __init__(
        self,
        episodes: EpisodeRunner,
        *,
        groups: GroupPlayer | None = None,
        shapers: Sequence[RewardShaper] = (),
        filters: Sequence[SampleFilter] = (),
        judges: Sequence[SampleFilter] = (),
        ahead: Ahead | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._episodes = episodes
        self._shapers = shapers
        self._filters = filters
        self._judges = judges
        self._ahead = ahead or Ahead()
        self._engine = engine
        self._engine_is_paused = False
        self._pool = Pool(player_for(episodes, groups), concurrency=self._ahead.concurrency)
        self.lengths = LengthEstimates()

    @property
    def in_flight(self) -> list[tuple[int, int]]:
        """(epoch, prompt) of each group that was drawn but neither trained on nor dropped, for checkpoints."""
        return [group.key for group in self._pool.groups]

    @property
    def work_done(self) -> WorkDone:
        """Work of generation so far."""
        return self._pool.work_done

    def restore(self, tasks: Sequence[Task], step: int, version: int) -> None:
        """Start groups again that were in flight when a checkpoint was written, with the same uids and seeds."""
        self._pool.release(version)
        self._pool.add(tasks, step)

    async def take(
        self,
        step: int,
        cursor: Cursor,
        num_prompts: int,
        *,
        max_refills: int,
        version: int,
        ledger: Ledger,
        steps_left: int = 0,
    ) -> Rollouts:
        """Return a batch of ``num_prompts`` groups, or fewer when the data or the refills ran out.

        Args:
            version: version of the policy's weights that the engine serves.
            steps_left: number of steps after this one, for which prompts may be started ahead.
        """
        try:
            return await self._take(
                _Draw(step, cursor, num_prompts, version, ledger, steps_left), max_refills
            )
        except BaseException:
            await self.close()
            raise

    async def hold_to_train(self) -> None:
        """Call ``hold`` if the engine computes with the trainer's own tensors, which training is about to change."""
        if self._ahead.max_staleness and self._engine is not None and self._engine.shares_weights:
            await self.hold()

    async def hold(self) -> None:
        """Make it safe to change the weights that the engine serves; ``release`` undoes it.

        No group starts any more. With ``in_flight_updates`` the engine is paused; without, this waits for the groups
        that are being played.

        Raises:
            RLHFError: the error of a group that failed.
        """
        self._pool.hold()
        if not (self._ahead.in_flight_updates and self._ahead.max_staleness):
            await self._pool.settled()
        elif self._pool.num_playing and not self._engine_is_paused:
            assert self._engine is not None
            await self._engine.pause()
            self._engine_is_paused = True

    async def release(self, version: int) -> None:
        """Go on with weights of this version."""
        if self._engine_is_paused:
            assert self._engine is not None
            await self._engine.resume()
            self._engine_is_paused = False
        self._pool.release(version)

    async def close(self) -> None:
        """Stop all groups in flight."""
        await self._pool.close()

    async def _take(self, draw: _Draw, max_refills: int) -> Rollouts:
        kept: list[TrajectoryColumns] = []
        unjudged: list[TrajectoryColumns] = []
        rollouts = Rollouts(batch=None)
        parts: list[Metrics] = []
        self._pool.release(draw.version)
        missing = draw.num_prompts
        spare = self._ahead.spare_prompts
        ahead = min(self._ahead.max_staleness, draw.steps_left) * draw.num_prompts
        draws = 0
        while missing and draws <= max_refills:
            self._fill(missing + max(spare, ahead), draw)
            groups = await self._wait(missing, missing + spare, rollouts)
            if not groups:
                break
            draws += 1
            scored = self._settle_unscored(groups, draw, parts)
            draw.cursor.note(prompt_results(scored, draw.step))
            info = self._info(draw)
            batch, missing = self._shape_and_filter(scored, info, draw.ledger, parts, unjudged)
            if batch is not None:
                kept.append(batch)
        await self._drop_left_over(draw, parts)
        self._fill(ahead, draw)
        if self._filters:
            parts.append({"filter/refills": Metric(max(draws - 1, 0), reduction="sum")})
        if self._ahead.max_staleness:
            in_flight = len(self._pool.groups)
            parts.append({"rollout/in_flight": Metric(in_flight, reduction="sum")})
        rollouts.metrics = merge_metrics(parts)
        rollouts.batch = _join(kept)
        rollouts.unjudged = _join(unjudged)
        if rollouts.batch is not None:
            self._settle_trained(rollouts.batch, draw, rollouts)
        return rollouts

    def _fill(self, target: int, draw: _Draw) -> None:
        """Start prompts until ``target`` groups are in the making, or the data ends."""
        in_flight = frozenset(group.key[1] for group in self._pool.groups)
        count = max(0, target - len(self._pool.groups))
        tasks = draw.cursor.take(count, step=draw.step, in_flight=in_flight)
        planned = {(task.uid.epoch, task.uid.prompt): self._num_samples for task in tasks}
        draw.ledger.planned(draw.step, planned)
        for start in range(0, len(tasks), draw.num_prompts):
            # A step's prompts compete for slots among themselves, not with those of later steps.
            part = tasks[start : start + draw.num_prompts]
            self._pool.add(part, draw.step, order=self.lengths.longest_first(part))

    async def _wait(self, count: int, among: int, rollouts: Rollouts) -> list[Playing]:
        started = time.perf_counter()
        groups = await self._pool.take(count, among=among)
        ended = time.perf_counter()
        # Groups that were generated before the step began to wait cost it no time.
        generated = max([started, *(group.generated_at or started for group in groups)])
        rollouts.generate_s += generated - started
        rollouts.reward_s += ended - generated
        return groups

    def _settle_unscored(
        self, groups: Sequence[Playing], draw: _Draw, parts: list[Metrics]
    ) -> list[TrajectoryColumns]:
        """Record groups that could not be scored, and episodes that were left out, as dropped; return the others."""
        batches: list[TrajectoryColumns] = []
        dropped: dict[str, dict[tuple[int, int], int]] = {}
        left_out: dict[str, dict[tuple[int, int], int]] = {}
        for group in groups:
            finished = group.work.result()
            if finished.batch is not None:
                batches.append(finished.batch)
            for reason, count in finished.lost.items():
                left_out.setdefault(reason, {})[group.key] = count
            if finished.dropped is not None:
                left = self._num_samples - sum(finished.lost.values())
                dropped.setdefault(finished.dropped, {})[group.key] = left
        for reason, counts in dropped.items():
            self._write_off(counts, reason, draw, parts)
        for reason, counts in left_out.items():
            draw.ledger.dropped(draw.step, counts, reason=reason)
            name = f"filter/dropped_episodes/{reason}"
            parts.append({name: Metric(sum(counts.values()), reduction="sum")})
        return batches

    async def _drop_left_over(self, draw: _Draw, parts: list[Metrics]) -> None:
        """Drop the groups that would be too old for the next step, or that no step is left for."""
        left = self._pool.groups
        if not self._ahead.max_staleness:
            await self._drop(left, STALE, draw, parts)
        elif not draw.steps_left:
            await self._drop(left, LEFT_OVER, draw, parts)
        else:
            oldest = draw.version + 1 - self._ahead.max_staleness
            old = [one for one in left if one.version is not None and one.version < oldest]
            await self._drop(old, STALE, draw, parts)

    async def _drop(
        self, groups: Sequence[Playing], reason: str, draw: _Draw, parts: list[Metrics]
    ) -> None:
        if groups:
            await self._pool.discard(groups)
            counts = {group.key: self._num_samples for group in groups}
            self._write_off(counts, reason, draw, parts)

    def _write_off(self, groups: Groups, reason: str, draw: _Draw, parts: list[Metrics]) -> None:
        draw.ledger.dropped(draw.step, groups, reason=reason)
        parts.append({f"filter/dropped_groups/{reason}": Metric(len(groups), reduction="sum")})

    def _settle_trained(self, batch: TrajectoryColumns, draw: _Draw, rollouts: Rollouts) -> None:
        bound = self._ahead.max_staleness
        rollouts.metrics |= staleness_metrics(batch, draw.version, bound)
        for version, groups in groups_by_version(batch).items():
            draw.ledger.trained(draw.step, groups, version=version)
        self.lengths.note(batch)
        rollouts.metrics |= batch_metrics(batch)

    @property
    def _num_samples(self) -> int:
        return len(self._episodes.samples)

    def _info(self, draw: _Draw) -> RolloutInfo:
        return RolloutInfo(
            step=draw.step,
            version=draw.version,
            max_new_tokens=self._episodes.context.sampling.max_new_tokens,
            max_length=self._episodes.context.max_length,
        )

    def _shape_and_filter(
        self,
        scored: Sequence[TrajectoryColumns],
        info: RolloutInfo,
        ledger: Ledger,
        parts: list[Metrics],
        unjudged: list[TrajectoryColumns],
    ) -> tuple[TrajectoryColumns | None, int]:
        """Return the groups that the filters keep, None if there are none, and the number of groups that they drop;
        those that judges drop are added to ``unjudged``."""
        if not scored:
            return None, 0
        batch = self._shape(TrajectoryColumns.concatenate(scored), info, parts)
        if not self._filters:
            return batch, 0
        group = batch.group
        keep = np.ones(len(batch), dtype=bool)
        num_dropped = 0
        for index in range(int(group.max()) + 1):
            rows = np.flatnonzero(group == index)
            one = batch.select(rows)
            by, reason = next(
                ((f, why) for f in self._filters if (why := f.keep(one, info)) is not None),
                (None, None),
            )
            if reason is not None:
                if any(by is judge for judge in self._judges):
                    unjudged.append(one)
                keep[rows] = False
                num_dropped += 1
                ledger.dropped(info.step, groups_of(one.uids()), reason=reason)
                parts.append({f"filter/dropped_groups/{reason}": Metric(1, reduction="sum")})
        kept = np.flatnonzero(keep)
        return (batch.select(kept) if len(kept) else None), num_dropped

    def _shape(
        self, batch: TrajectoryColumns, info: RolloutInfo, parts: list[Metrics]
    ) -> TrajectoryColumns:
        """Return the batch with the rewards that the shapers make of its own, which stay as a metric of each sample."""
        if self._shapers:
            batch = replace(batch, metrics={**batch.metrics, UNSHAPED: batch.total_reward})
        for shaper in self._shapers:
            batch, metrics = shaper.shape(batch, info)
            parts.append(metrics)
        return batch


@dataclass(frozen=True, slots=True)
class _Draw:
    """One step's request for prompts."""

    step: int
    cursor: Cursor
    num_prompts: int
    version: int
    ledger: Ledger
    steps_left: int


def _join(parts: Sequence[TrajectoryColumns]) -> TrajectoryColumns | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else TrajectoryColumns.concatenate(parts)
