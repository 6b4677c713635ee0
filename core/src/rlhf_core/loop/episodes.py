"""All episodes of some prompts: played by the executor, scored while others are still being played."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..contracts.executor import RolloutContext, RolloutExecutor
from ..contracts.reward import RewardRequest
from ..contracts.task import Task
from ..contracts.trajectory import Trajectory
from ..errors import RolloutError
from ..rewards.panel import SampleScore
from .faults import fault_point

ScoreRequests = Callable[[Sequence[RewardRequest]], Awaitable[Sequence[SampleScore]]]
SeedOf = Callable[[Task, int, int], int]

GREEDY_REWARD = "greedy_reward"
"""Metric of every sample of a prompt: what the prompt's greedy episode earned, if one is sampled."""


@dataclass(slots=True, kw_only=True)
class Scored:
    """The finished groups of some prompts."""

    trajectories: list[Trajectory]
    dropped: dict[str, list[Task]]
    """Reason -> tasks whose group was dropped because a sample could not be scored."""
    generate_s: float
    reward_s: float


class EpisodeRunner:
    """Runs and scores groups of episodes, for training and, with other sampling, for evaluation.

    Args:
        seed_of: the seed of a task's sample and turn.
        score: asks the rewards; None when the environment alone gives rewards.
        with_greedy: play one more episode per prompt at temperature 0, for its reward alone.
    """

    def __init__(
        self,
        *,
        executor: RolloutExecutor,
        context: RolloutContext,
        seed_of: SeedOf,
        score: ScoreRequests | None,
        samples_per_prompt: int,
        with_greedy: bool = False,
    ) -> None:
        self.context = context
        self.samples = range(samples_per_prompt)
        self._executor = executor
        self._seed_of = seed_of
        self._score = score
        self._with_greedy = with_greedy

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
        context = replace(self.context, seed=lambda sample, turn: self._seed_of(task, sample, turn))
        plays = {self.samples: context}
        if self._with_greedy:
            greedy = replace(context, sampling=replace(context.sampling, temperature=0.0))
            plays[range(len(self.samples), len(self.samples) + 1)] = greedy
        async with asyncio.TaskGroup() as group:
            running = {
                samples: group.create_task(self._executor.run(task, samples, context))
                for samples, context in plays.items()
            }
        trajectories: list[Trajectory] = []
        for samples, play in running.items():
            _check(task, play.result(), samples)
            trajectories += play.result()
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
        decode = self.context.renderer.decode
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
        sampled = [row for row in group if row.uid.sample in self.samples]
        segments = [row.total_reward for row in group if row.uid.sample not in self.samples]
        reward = sum(segments) / len(segments)
        return [replace(row, metrics={**row.metrics, GREEDY_REWARD: reward}) for row in sampled]


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


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    """The first error of a group that is no group itself."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error
