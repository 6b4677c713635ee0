"""One step's rollouts: draw prompts, run their episodes, score, shape, filter, and replace what was filtered out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..contracts.executor import RolloutContext, RolloutExecutor
from ..contracts.metric import Metric, Metrics, merge_metrics
from ..contracts.reward import RewardRequest, RewardShaper, RolloutInfo, SampleFilter
from ..contracts.task import Task
from ..contracts.trajectory import Trajectory, TrajectoryColumns
from ..errors import RolloutError
from ..rewards.panel import SampleScore
from .cursor import Cursor
from .faults import fault_point
from .ledger import Ledger, groups_of

ScoreRequests = Callable[[Sequence[RewardRequest]], Awaitable[Sequence[SampleScore]]]
SeedOf = Callable[[Task, int, int], int]

GREEDY_REWARD = "greedy_reward"
"""Metric of every sample of a prompt: what the prompt's greedy episode earned, if one is sampled."""


@dataclass(slots=True, kw_only=True)
class Rollouts:
    """What one step has to train on."""

    batch: TrajectoryColumns | None
    """None when nothing survived."""
    metrics: Metrics = field(default_factory=dict)
    generate_s: float = 0.0
    reward_s: float = 0.0
    """Time spent waiting for rewards after generation had ended."""


@dataclass(slots=True, kw_only=True)
class Scored:
    """The finished groups of some prompts."""

    trajectories: list[Trajectory]
    dropped: dict[str, list[Task]]
    """Reason -> tasks whose group was dropped because a sample could not be scored."""
    generate_s: float
    reward_s: float


class RolloutSource:
    """Produces rollout batches; used for training and, with other sampling, for evaluation."""

    def __init__(
        self,
        *,
        executor: RolloutExecutor,
        context: RolloutContext,
        seed_of: SeedOf,
        score: ScoreRequests | None,
        samples_per_prompt: int,
        shapers: Sequence[RewardShaper] = (),
        filters: Sequence[SampleFilter] = (),
        with_greedy: bool = False,
    ) -> None:
        self._executor = executor
        self._context = context
        self._seed_of = seed_of
        self._score = score
        self._samples = range(samples_per_prompt)
        self._shapers = shapers
        self._filters = filters
        self._with_greedy = with_greedy

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
            max_new_tokens=self._context.sampling.max_new_tokens,
            max_length=self._context.max_length,
        )
        missing = num_prompts
        draws = 0
        while missing and draws <= max_refills:
            tasks = cursor.take(missing)
            if not tasks:
                break
            draws += 1
            ledger.planned(
                step, {(task.uid.epoch, task.uid.prompt): len(self._samples) for task in tasks}
            )
            scored = await self.run(tasks, step)
            rollouts.generate_s += scored.generate_s
            rollouts.reward_s += scored.reward_s
            for reason, lost in scored.dropped.items():
                ledger.dropped(step, _groups(lost, len(self._samples)), reason=reason)
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

    async def run(self, tasks: Sequence[Task], step: int) -> Scored:
        """Run and score all episodes of some tasks; finished groups are scored while others are generated."""
        started = time.perf_counter()
        finished: asyncio.Queue[tuple[Task, list[Trajectory]] | None] = asyncio.Queue()
        scoring = asyncio.create_task(self._score_as_they_finish(finished, step))
        try:
            async with asyncio.TaskGroup() as group:
                for task in tasks:
                    group.create_task(self._run_one(task, step, finished))
        except* Exception as errors:
            scoring.cancel()
            raise _first(errors) from errors
        generated = time.perf_counter()
        finished.put_nowait(None)
        trajectories, dropped = await scoring
        return Scored(
            trajectories=trajectories,
            dropped=dropped,
            generate_s=generated - started,
            reward_s=time.perf_counter() - generated,
        )

    async def _run_one(
        self, task: Task, step: int, finished: asyncio.Queue[tuple[Task, list[Trajectory]] | None]
    ) -> None:
        context = replace(
            self._context, seed=lambda sample, turn: self._seed_of(task, sample, turn)
        )
        trajectories = await self._executor.run(task, self._samples, context)
        _check(task, trajectories, self._samples)
        if self._with_greedy:
            greedy = replace(context, sampling=replace(context.sampling, temperature=0.0))
            sample = range(len(self._samples), len(self._samples) + 1)
            episode = await self._executor.run(task, sample, greedy)
            _check(task, episode, sample)
            trajectories = [*trajectories, *episode]
        fault_point("generate", step)
        finished.put_nowait((task, trajectories))

    async def _score_as_they_finish(
        self, finished: asyncio.Queue[tuple[Task, list[Trajectory]] | None], step: int
    ) -> tuple[list[Trajectory], dict[str, list[Task]]]:
        done: list[Trajectory] = []
        dropped: dict[str, list[Task]] = {}
        more = True
        while more:
            waiting = [await finished.get()]
            while not finished.empty():
                waiting.append(finished.get_nowait())
            more = None not in waiting
            groups = [group for group in waiting if group is not None]
            if groups:
                await self._score_groups(groups, done, dropped)
                fault_point("reward", step)
        return done, dropped

    async def _score_groups(
        self,
        groups: Sequence[tuple[Task, list[Trajectory]]],
        done: list[Trajectory],
        dropped: dict[str, list[Task]],
    ) -> None:
        if self._score is None:
            for _, group in groups:
                done.extend(self._without_greedy(group))
            return
        decode = self._context.renderer.decode
        requests = [request for task, group in groups for request in _requests(task, group, decode)]
        scores = iter(await self._score(requests))
        for task, group in groups:
            of_group = [next(scores) for _ in group]
            reason = next((score.dropped for score in of_group if score.dropped is not None), None)
            if reason is not None:
                # The whole group goes: a baseline over the rest of it would be another estimator's.
                dropped.setdefault(reason, []).append(task)
                continue
            scored = [
                replace(
                    trajectory,
                    reward=score.reward,
                    rewards=score.rewards,
                    metrics={**trajectory.metrics, **score.metrics},
                )
                for trajectory, score in zip(group, of_group, strict=True)
            ]
            done.extend(self._without_greedy(scored))

    def _without_greedy(self, group: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Take the greedy episode out of a scored group, and note its reward in the others' metrics."""
        if not self._with_greedy:
            return group
        sampled = [row for row in group if row.uid.sample in self._samples]
        segments = [row.total_reward for row in group if row.uid.sample not in self._samples]
        reward = sum(segments) / len(segments)
        return [replace(row, metrics={**row.metrics, GREEDY_REWARD: reward}) for row in sampled]

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


def _requests(
    task: Task, group: Sequence[Trajectory], decode: Callable[..., str]
) -> Iterator[RewardRequest]:
    """What rewards get to see of a group. The prompt is what stands before the first action: an environment may have
    written it."""
    prompts: dict[tuple[int, ...], str] = {}
    for trajectory in group:
        tokens = trajectory.token_ids.tolist()
        start = trajectory.turns[0].start if trajectory.turns else len(tokens)
        prompt = tuple(tokens[:start])
        if prompt not in prompts:
            prompts[prompt] = decode(prompt, skip_special_tokens=False)
        yield RewardRequest(
            uid=str(trajectory.uid),
            row=task.row,
            prompt=prompts[prompt],
            response=decode(tokens[start:], skip_special_tokens=True),
            token_ids=tuple(tokens),
            action_mask=tuple(trajectory.action_mask.tolist()),
            turns=trajectory.turns,
            truncated=trajectory.truncated,
        )


def _check(task: Task, trajectories: Sequence[Trajectory], samples: range) -> None:
    found = {trajectory.uid._replace(segment=0) for trajectory in trajectories}
    expected = {task.uid._replace(sample=sample) for sample in samples}
    if found != expected:
        raise RolloutError(
            f"the rollout executor returned episodes {sorted(map(str, found))} for task {task.uid}; expected "
            f"{len(samples)} of them, {task.uid} with sample {samples[0]} to {samples[-1]}"
        )
    for trajectory in trajectories:
        if not trajectory.turns:
            raise RolloutError(
                f"the rollout executor returned {trajectory.uid} without a single action token; expected at least one, "
                "for there is nothing else to train on. Leave such segments out."
            )


def _groups(tasks: Sequence[Task], num_samples: int) -> dict[tuple[int, int], int]:
    return {(task.uid.epoch, task.uid.prompt): num_samples for task in tasks}


def _join(parts: Sequence[TrajectoryColumns]) -> TrajectoryColumns | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else TrajectoryColumns.concatenate(parts)


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    """The first error of a group that is no group itself."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


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
