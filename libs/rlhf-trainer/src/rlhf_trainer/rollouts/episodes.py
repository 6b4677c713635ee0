"""All episodes of one prompt: played by the executor, then scored.

An episode of several segments is scored by the segment in which it ended. Its reward is the reward of all its segments;
parts of it on single actions stand in the scored segment alone, and in the others on their last action.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import overload

from rlhf_core.batch.task import Task, Uid
from rlhf_core.batch.trajectory import Trajectory
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.executor import (
    FinishedGroup,
    GroupSettings,
    Renderer,
    RolloutContext,
    RolloutExecutor,
    SeedOf,
)
from rlhf_core.contracts.reward import RewardRequest
from rlhf_core.errors import RolloutError
from rlhf_core.media.reader import ImageReader
from rlhf_core.media.sample_image import sample_images
from rlhf_data.chat.template_kwargs import renderer_of
from rlhf_data.source import TEMPLATE_KWARGS
from rlhf_guard.concurrency import all_at_once
from rlhf_guard.environments.chosen import Environments
from rlhf_guard.rewards.panel import SampleScore


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedGroup:
    """The episodes of one prompt, before they are scored."""

    task: Task
    trajectories: Sequence[Trajectory]
    """All segments of the episodes that were kept."""
    left_out: Mapping[int, str]
    """Sample of each episode that the executor left out -> the reason."""

    @property
    def num_actions(self) -> int:
        """Number of tokens that the policy wrote."""
        return sum(len(one.rollout_logprobs) for one in self.trajectories)

    @property
    def scored(self) -> list[Trajectory]:
        """The segment of each episode that is scored, in the order in which the episodes came."""
        by_sample: dict[int, Trajectory] = {}
        for one in self.trajectories:
            best = by_sample.setdefault(one.uid.sample, one)
            if (one.is_final, one.uid.segment) >= (best.is_final, best.uid.segment):
                by_sample[one.uid.sample] = one
        return list(by_sample.values())

    def lost(self, samples: range) -> dict[str, int]:
        """Return the number of episodes among ``samples`` that were left out, by reason."""
        return dict(Counter(why for sample, why in self.left_out.items() if sample in samples))


def check_episodes(
    task: Task, trajectories: Sequence[Trajectory], samples: range, left_out: Mapping[Uid, str]
) -> None:
    """Check that an executor returned, or left out, exactly the episodes that it was asked for.

    Raises:
        RolloutError: it did not, or a segment has no action.
    """
    found = {one.uid._replace(segment=0) for one in trajectories}
    expected = {task.uid._replace(sample=sample) for sample in samples}
    if found & left_out.keys() or found | left_out.keys() != expected:
        raise RolloutError(
            f"the rollout executor returned episodes {sorted(map(str, found))} and left out "
            f"{sorted(map(str, left_out))} for task {task.uid}; expected {len(samples)} of them in one or the other, "
            f"{task.uid} with sample {samples[0]} to {samples[-1]}",
            code="rollout/wrong-episodes",
        )
    for trajectory in trajectories:
        if not trajectory.turns:
            raise RolloutError(
                f"the rollout executor returned {trajectory.uid} without a single action token; expected at least one, "
                "for there is nothing else to train on. Leave such segments out.",
                code="rollout/no-action-token",
            )


class EpisodeRequests(Sequence[RewardRequest]):
    """One request to the rewards for each episode of played groups, in order. Its prompt is the text before the first
    action, which an environment may have written.

    A slice makes the requests that it holds, once, and no others: a reward's process reads the first samples while the
    text of the next ones is decoded. Any other way to read makes all of them.

    Args:
        images: took the episodes' images in; None: the policy reads text alone.
    """

    def __init__(
        self, groups: Sequence[PlayedGroup], renderer: Renderer, images: ImageReader | None = None
    ) -> None:
        self._played = [(group.task, one) for group in groups for one in group.scored]
        self._renderer = renderer
        self._images = images
        self._made: list[RewardRequest] = []
        self._text_of: dict[tuple[int, ...], str] = {}

    def __len__(self) -> int:
        return len(self._played)

    def __iter__(self) -> Iterator[RewardRequest]:
        return iter(self[:])

    @overload
    def __getitem__(self, index: int) -> RewardRequest: ...
    @overload
    def __getitem__(self, index: slice) -> list[RewardRequest]: ...
    def __getitem__(self, index: int | slice) -> RewardRequest | list[RewardRequest]:
        if not isinstance(index, slice):
            return self[:][index]
        wanted = range(len(self))[index]
        start, end = len(self._made), max(wanted, default=-1) + 1
        if end > start:
            self._made += self._requests_of(self._played[start:end])
        return [self._made[place] for place in wanted]

    def _requests_of(self, played: Sequence[tuple[Task, Trajectory]]) -> list[RewardRequest]:
        tokens = [trajectory.token_ids.tolist() for _, trajectory in played]
        starts = [trajectory.turns[0].start for _, trajectory in played]
        prompts = self._prompts([row[:start] for row, start in zip(tokens, starts, strict=True)])
        responses = self._renderer.decode_batch(
            [row[start:] for row, start in zip(tokens, starts, strict=True)],
            skip_special_tokens=True,
        )
        return [
            RewardRequest(
                uid=str(trajectory.uid),
                row=task.row,
                prompt=prompt,
                response=response,
                token_ids=tuple(row),
                action_mask=tuple(trajectory.action_mask.tolist()),
                turns=trajectory.turns,
                truncated=trajectory.truncated,
                media=sample_images(trajectory.media, self._images) if trajectory.media else (),
            )
            for (task, trajectory), row, prompt, response in zip(
                played, tokens, prompts, responses, strict=True
            )
        ]

    def _prompts(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each prompt. The samples of a group share theirs, which is decoded once."""
        prompts = list(map(tuple, tokens))
        different = [key for key in dict.fromkeys(prompts) if key not in self._text_of]
        if different:
            texts = self._renderer.decode_batch(different, skip_special_tokens=False)
            self._text_of.update(zip(different, texts, strict=True))
        return [self._text_of[prompt] for prompt in prompts]


def rewarded(group: PlayedGroup, scores: Sequence[SampleScore]) -> list[Trajectory]:
    """Return all segments of a group with the scores of their episodes.

    Raises:
        RolloutError: a reward and a reward of the executor's own have one name.
    """
    of_sample = {
        one.uid.sample: (one.uid, score) for one, score in zip(group.scored, scores, strict=True)
    }
    rows = []
    for row in group.trajectories:
        scored, score = of_sample[row.uid.sample]
        if twice := row.rewards.keys() & score.rewards.keys():
            raise RolloutError(
                f"{row.uid}: both the environment and --reward give a reward named {min(twice)!r}; expected different "
                "names. Rename the environment's.",
                code="reward/name-taken",
            )
        given = score.reward or 0.0
        rows.append(
            replace(
                row,
                reward=given if row.reward is None else row.reward + given,
                rewards={**row.rewards, **score.rewards},
                step_rewards=score.step_rewards if row.uid == scored else (),
                metrics={**row.metrics, **score.metrics},
            )
        )
    return rows


def with_environment_metrics(row: Trajectory, environment: str) -> Trajectory:
    """Return a scored row of a run with several environments: its reward and its metrics are there a second time under
    the name of its environment, so that each environment has means of its own."""
    numbers = {"reward": row.total_reward, **row.metrics}
    named = {f"{environment}/{name}": value for name, value in numbers.items()}
    return replace(row, metrics={**row.metrics, **named})


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
        renderer = self.context.renderer
        if task.row.get(TEMPLATE_KWARGS) is not None:
            renderer = renderer_of(task.row, renderer)
        context = replace(
            self.context,
            renderer=renderer,
            sampling=self._settings[with_logprobs].sampling,
            seed=partial(self._seed_of, task),
            drop=left_out.__setitem__,
        )
        plays = {self.samples: context}
        if self._with_greedy:
            greedy = replace(context, sampling=replace(context.sampling, temperature=0.0))
            plays[range(len(self.samples), len(self.samples) + 1)] = greedy
        played = await all_at_once(
            self._executor.run(task, samples, context) for samples, context in plays.items()
        )
        trajectories = [row for rows in played for row in rows]
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
            return [self._finished(group, group.trajectories) for group in groups]
        requests = EpisodeRequests(groups, self.context.renderer, self.context.images)
        scores = iter(await self._score(requests) if requests else ())
        return [self._rewarded(group, list(islice(scores, len(group.scored)))) for group in groups]

    def _rewarded(self, group: PlayedGroup, scores: Sequence[SampleScore]) -> FinishedGroup:
        reason = next((score.dropped for score in scores if score.dropped is not None), None)
        if reason is not None:
            # The whole group is dropped: a baseline over its other samples alone would be another estimator.
            return FinishedGroup(batch=None, dropped=reason, lost=group.lost(self.samples))
        return self._finished(group, rewarded(group, scores))

    def _finished(self, group: PlayedGroup, rows: Sequence[Trajectory]) -> FinishedGroup:
        """Return the group with these rows, which have their rewards."""
        lost = group.lost(self.samples)
        trained = [row for row in rows if row.uid.sample in self.samples]
        greedy = [row for row in rows if row.uid.sample not in self.samples]
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
