"""Source of rollout batches: draws prompts, has them played, and replaces groups that were dropped.

If generation may run ahead, prompts of later steps are started meanwhile. Before that, what the engine serves can be
compared with the policy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_core.batch.metric import Metric
from rlhf_core.batch.task import Task
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.engine import Engine
from rlhf_core.contracts.executor import GroupPlayer
from rlhf_core.contracts.reward import RewardShaper, SampleFilter
from rlhf_core.contracts.runtime import RoleHandle
from rlhf_core.errors import RolloutError
from rlhf_guard.concurrency import all_at_once

from ..durable.records import Ledger
from .episodes import EpisodeRunner
from .pool import Player, Pool, PooledGroup
from .prompts import Cursor
from .settling import Draw, Settling

STALE = "stale"
"""Reason for dropping a group that would be too old for the next step; a filter of plugins gives the same reason."""
LEFT_OVER = "left_over"
"""Reason for dropping a group that no step is left for."""


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
        judges: those of the filters whose dropped groups still train what needs no advantages (``Draw.unjudged``).
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
        self._settling = Settling(episodes, shapers, filters, judges)
        self._ahead = ahead or Ahead()
        self._engine = engine
        self._engine_is_paused = False
        self._pool = Pool(Player(episodes, groups), concurrency=self._ahead.concurrency)
        self.lengths = LengthEstimates()

    @property
    def in_flight(self) -> list[tuple[int, int]]:
        """(epoch, prompt) of each group that was drawn but neither trained on nor dropped, for checkpoints."""
        return [group.key for group in self._pool.groups]

    @property
    def work_done(self) -> tuple[float, int]:
        """See ``Pool.work_done``."""
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
    ) -> Draw:
        """Return a draw with a batch of ``num_prompts`` groups, or fewer when the data or the refills ran out.

        Args:
            version: version of the policy's weights that the engine serves.
            steps_left: number of steps after this one, for which prompts may be started ahead.
        """
        try:
            draw = Draw(step, cursor, num_prompts, version, ledger, steps_left)
            await self._take(draw, max_refills)
            return draw
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

    async def _take(self, draw: Draw, max_refills: int) -> None:
        self._pool.release(draw.version)
        missing = draw.num_prompts
        spare = self._ahead.spare_prompts
        ahead = min(self._ahead.max_staleness, draw.steps_left) * draw.num_prompts
        draws = 0
        while missing and draws <= max_refills:
            self._fill(missing + max(spare, ahead), draw)
            groups = await self._wait(missing, missing + spare, draw)
            if not groups:
                break
            draws += 1
            missing = self._settling.take([(one.key, one.work.result()) for one in groups], draw)
        await self._drop_left_over(draw)
        self._fill(ahead, draw)
        if self._settling.filters:
            draw.metric_parts.append({"filter/refills": Metric(max(draws - 1, 0), reduction="sum")})
        if self._ahead.max_staleness:
            in_flight = len(self._pool.groups)
            draw.metric_parts.append({"rollout/in_flight": Metric(in_flight, reduction="sum")})
        self._settling.finish(draw, max_staleness=self._ahead.max_staleness)
        if draw.batch is not None:
            self.lengths.note(draw.batch)

    def _fill(self, target: int, draw: Draw) -> None:
        """Start prompts until ``target`` groups are in the making, or the data ends."""
        in_flight = frozenset(group.key[1] for group in self._pool.groups)
        count = max(0, target - len(self._pool.groups))
        tasks = draw.cursor.take(count, step=draw.step, in_flight=in_flight)
        samples = self._settling.num_samples
        draw.ledger.planned(
            draw.step, {(task.uid.epoch, task.uid.prompt): samples for task in tasks}
        )
        for start in range(0, len(tasks), draw.num_prompts):
            # A step's prompts compete for slots among themselves, not with those of later steps.
            part = tasks[start : start + draw.num_prompts]
            self._pool.add(part, draw.step, order=self.lengths.longest_first(part))

    async def _wait(self, count: int, among: int, draw: Draw) -> list[PooledGroup]:
        started = time.perf_counter()
        groups = await self._pool.take(count, among=among)
        ended = time.perf_counter()
        # Groups that were generated before the step began to wait cost it no time.
        generated = max([started, *(group.generated_at or started for group in groups)])
        draw.generate_s += generated - started
        draw.reward_s += ended - generated
        return groups

    async def _drop_left_over(self, draw: Draw) -> None:
        """Drop the groups that would be too old for the next step, or that no step is left for."""
        left, reason = self._pool.groups, STALE
        if self._ahead.max_staleness and not draw.steps_left:
            reason = LEFT_OVER
        elif self._ahead.max_staleness:
            oldest = draw.version + 1 - self._ahead.max_staleness
            left = [one for one in left if one.version is not None and one.version < oldest]
        if left:
            await self._pool.discard(left)
            counts = {group.key: self._settling.num_samples for group in left}
            self._settling.write_off(counts, reason, draw)


async def check_served_weights(engine: Engine, policy: RoleHandle, version: int) -> None:
    """Compare the weights' digests of engine and policy, unless they share tensors or one has no digest.

    Raises:
        RolloutError: the digests differ, so samples would not come from the policy that is trained.
    """
    if engine.shares_weights:
        return
    # The engine first: it computes in a process of its own, while the trainer may compute in this one.
    served, expected = await all_at_once([engine.checksum(), policy.checksum()])
    if served is not None and expected is not None and served != expected:
        raise RolloutError(
            f"after the update to version {version} the engine serves other weights (digest {served[:12]}) than the "
            f"trainer has ({expected[:12]}); its samples would be off-policy without a warning. Continue from the "
            "newest checkpoint with --resume auto. If it happens again, the engine loads this model's weights wrongly, "
            "and --rollout.check_weights false would only hide it.",
            code="engine/serves-other-weights",
        )


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
