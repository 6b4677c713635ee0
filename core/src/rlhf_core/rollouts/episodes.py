"""All episodes of one prompt: played by the executor, then scored."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from ..batch.task import Task, Uid
from ..batch.trajectory import Trajectory
from ..batch.trajectory_columns import TrajectoryColumns
from ..contracts.executor import (
    FinishedGroup,
    GroupSettings,
    Renderer,
    RolloutContext,
    RolloutExecutor,
    SeedOf,
)
from ..contracts.reward import RewardRequest
from ..errors import RolloutError
from ..rewards.panel import SampleScore

ScoreRequests = Callable[[Sequence[RewardRequest]], Awaitable[Sequence[SampleScore]]]

GREEDY_REWARD = "greedy_reward"
"""Metric of every sample of a prompt: the reward of the prompt's greedy episode, if one is sampled."""


class EpisodeRunner:
    """Plays and scores groups of episodes, for training and, with other sampling, for evaluation.

    Args:
        seed_of: function that gives the seed of a task's sample and turn.
        score: function that asks the rewards; None when the environment alone gives rewards.
        with_greedy: play one more episode per prompt at temperature 0, for its reward alone.
        compared_share: share of the prompts, at least one, whose samples carry the sampler's log-probs; 0: none.
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
        compared_share: float = 1.0,
    ) -> None:
        self.context = context
        self.samples = range(samples_per_prompt)
        self._executor = executor
        self._seed_of = seed_of
        self._score = score
        self._with_greedy = with_greedy
        self._compared_share = compared_share
        self._terms = {
            with_logprobs: GroupSettings(
                num_samples=samples_per_prompt,
                sampling=replace(context.sampling, logprobs=with_logprobs),
                max_length=context.max_length,
                seed_of=seed_of,
                with_greedy=with_greedy,
            )
            for with_logprobs in (False, True)
        }

    def compared(self, tasks: Sequence[Task]) -> frozenset[Uid]:
        """Return the prompts whose samples carry log-probs: those with the smallest seeds, so that a resumed run takes
        the same ones."""
        count = math.ceil(self._compared_share * len(tasks))
        ranked = sorted(tasks, key=lambda task: self._seed_of(task, 0, 0))
        return frozenset(task.uid for task in ranked[:count])

    def settings(self, *, with_logprobs: bool) -> GroupSettings:
        """Return the settings for another process, which has an executor, an engine and rewards of its own."""
        return self._terms[with_logprobs]

    async def play(self, task: Task, *, with_logprobs: bool = True) -> list[Trajectory]:
        """Play all episodes of a task, the greedy one included.

        Raises:
            RolloutError: an episode failed, or the executor returned other episodes than it was asked for.
        """
        context = replace(
            self.context,
            sampling=self._terms[with_logprobs].sampling,
            seed=partial(self._seed_of, task),
        )
        plays = {self.samples: context}
        if self._with_greedy:
            greedy = replace(context, sampling=replace(context.sampling, temperature=0.0))
            plays[range(len(self.samples), len(self.samples) + 1)] = greedy
        try:
            async with asyncio.TaskGroup() as group:
                running = {
                    samples: group.create_task(self._executor.run(task, samples, context))
                    for samples, context in plays.items()
                }
        except* Exception as errors:
            raise _first(errors) from errors
        trajectories: list[Trajectory] = []
        for samples, play in running.items():
            _check(task, play.result(), samples)
            trajectories += play.result()
        return trajectories

    async def score(self, groups: Sequence[tuple[Task, list[Trajectory]]]) -> list[FinishedGroup]:
        """Return played groups with their rewards, for which all rewards are asked in one call.

        Raises:
            RewardError: a sample could not be scored, and its reward's policy is to fail.
        """
        if self._score is None:
            return [self._finished(group) for _, group in groups]
        requests = _requests(groups, self.context.renderer)
        scores = iter(await self._score(requests))
        return [self._rewarded(group, [next(scores) for _ in group]) for _, group in groups]

    def _rewarded(
        self, group: Sequence[Trajectory], scores: Sequence[SampleScore]
    ) -> FinishedGroup:
        reason = next((score.dropped for score in scores if score.dropped is not None), None)
        if reason is not None:
            # The whole group is dropped: a baseline over its other samples alone would be another estimator.
            return FinishedGroup(batch=None, dropped=reason)
        rewarded = [
            replace(
                trajectory,
                reward=score.reward,
                rewards=score.rewards,
                step_rewards=score.step_rewards,
                metrics={**trajectory.metrics, **score.metrics},
            )
            for trajectory, score in zip(group, scores, strict=True)
        ]
        return self._finished(rewarded)

    def _finished(self, group: Sequence[Trajectory]) -> FinishedGroup:
        columns = TrajectoryColumns.from_trajectories(self._without_greedy(group))
        return FinishedGroup(batch=columns)

    def _without_greedy(self, group: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Return a scored group without its greedy episode, whose reward becomes a metric of the others."""
        if not self._with_greedy:
            return group
        sampled = [row for row in group if row.uid.sample in self.samples]
        segments = [row.total_reward for row in group if row.uid.sample not in self.samples]
        reward = sum(segments) / len(segments)
        return [replace(row, metrics={**row.metrics, GREEDY_REWARD: reward}) for row in sampled]


def _requests(
    groups: Sequence[tuple[Task, list[Trajectory]]], renderer: Renderer
) -> list[RewardRequest]:
    """Return one request per trajectory. Its prompt is the text before the first action, which an environment may have
    written."""
    played = [(task, trajectory) for task, group in groups for trajectory in group]
    tokens = [trajectory.token_ids.tolist() for _, trajectory in played]
    starts = [
        trajectory.turns[0].start if trajectory.turns else len(trajectory.token_ids)
        for _, trajectory in played
    ]
    # Samples of a group share their prompt, and so its text.
    prompts = [tuple(row[:start]) for row, start in zip(tokens, starts, strict=True)]
    different = list(dict.fromkeys(prompts))
    decoded = renderer.decode_batch(different, skip_special_tokens=False)
    text_of = dict(zip(different, decoded, strict=True))
    responses = renderer.decode_batch(
        [row[start:] for row, start in zip(tokens, starts, strict=True)], skip_special_tokens=True
    )
    return [
        RewardRequest(
            uid=str(trajectory.uid),
            row=task.row,
            prompt=text_of[prompt],
            response=response,
            token_ids=tuple(row),
            action_mask=tuple(trajectory.action_mask.tolist()),
            turns=trajectory.turns,
            truncated=trajectory.truncated,
        )
        for (task, trajectory), row, prompt, response in zip(
            played, tokens, prompts, responses, strict=True
        )
    ]


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
    """Return the first error of a group of errors that may be nested."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error
