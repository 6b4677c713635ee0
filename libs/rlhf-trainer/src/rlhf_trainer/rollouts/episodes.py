"""All episodes of one prompt: played by the executor, then scored."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from rlhf_core.batch.task import Task, Uid
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.executor import (
    FinishedGroup,
    GroupSettings,
    RolloutContext,
    RolloutExecutor,
    SeedOf,
)
from rlhf_core.contracts.reward import RewardRequest
from rlhf_core.errors import first_error
from rlhf_data.chat.template_kwargs import renderer_of
from rlhf_guard.rewards.panel import SampleScore

from .environments import Environments
from .played import (
    EpisodeRequests,
    PlayedGroup,
    check_episodes,
    rewarded,
    with_environment_metrics,
)

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
        self._settings = {
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
        return self._settings[with_logprobs]

    async def play(self, task: Task, *, with_logprobs: bool = True) -> PlayedGroup:
        """Play all episodes of a task, the greedy one included.

        Raises:
            DataError: the row gives variables that the chat template does not read.
            RolloutError: an episode failed, or the executor returned other episodes than it was asked for.
        """
        left_out: dict[Uid, str] = {}
        context = replace(
            self.context,
            renderer=renderer_of(task.row, self.context.renderer),
            sampling=self._settings[with_logprobs].sampling,
            seed=partial(self._seed_of, task),
            drop=left_out.__setitem__,
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
            raise first_error(errors) from errors
        trajectories = [row for play in running.values() for row in play.result()]
        check_episodes(task, trajectories, range(sum(map(len, plays))), left_out)
        return PlayedGroup(
            task=task,
            trajectories=trajectories,
            left_out={uid.sample: reason for uid, reason in left_out.items()},
        )

    async def score(self, groups: Sequence[PlayedGroup]) -> list[FinishedGroup]:
        """Return played groups with their rewards, for which all rewards are asked in one call.

        Raises:
            RewardError: a sample could not be scored, and its reward's policy is to fail.
        """
        if self._score is None:
            return [self._finished(group) for group in groups]
        requests = EpisodeRequests(groups, self.context.renderer, self.context.images)
        scores = iter(await self._score(requests) if requests else ())
        return [self._rewarded(group, list(islice(scores, len(group.scored)))) for group in groups]

    def _rewarded(self, group: PlayedGroup, scores: Sequence[SampleScore]) -> FinishedGroup:
        reason = next((score.dropped for score in scores if score.dropped is not None), None)
        if reason is not None:
            # The whole group is dropped: a baseline over its other samples alone would be another estimator.
            return FinishedGroup(batch=None, dropped=reason, lost=group.lost(self.samples))
        return self._finished(replace(group, trajectories=rewarded(group, scores)))

    def _finished(self, group: PlayedGroup) -> FinishedGroup:
        lost = group.lost(self.samples)
        trained = [row for row in group.trajectories if row.uid.sample in self.samples]
        greedy = [row for row in group.trajectories if row.uid.sample not in self.samples]
        if not trained or (self._with_greedy and not greedy):
            # What is left has nothing to train on, or nothing to be compared with.
            reason = next(iter(group.left_out.values()))
            return FinishedGroup(batch=None, dropped=reason, lost=lost if trained else {})
        if greedy:
            reward = sum(row.total_reward for row in greedy) / len(greedy)
            trained = [
                replace(row, metrics={**row.metrics, GREEDY_REWARD: reward}) for row in trained
            ]
        if isinstance(self.context.environment, Environments) and len(self.context.environment) > 1:
            trained = [with_environment_metrics(row, group.task.environment) for row in trained]
        return FinishedGroup(batch=TrajectoryColumns.from_trajectories(trained), lost=lost)
