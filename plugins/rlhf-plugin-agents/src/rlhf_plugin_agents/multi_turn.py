"""The executor ``multi_turn``, in whose episodes policy and environment take turns.

- Each episode has its own environment, which is always closed. All episodes of a group get the same environment seed,
  ``context.seed(0, -1)``: they face the same problem, so their rewards compare the policy's choices.
- The policy's tokens are kept as they were sampled. Only the environment's text is tokenized, and appended.
- A turn has at most ``max_new_tokens``, and no more than ``max_length`` and ``max_episode_tokens`` leave. An
  observation that leaves no room for another turn is not appended, and the last turn's stop becomes LENGTH: the episode
  is truncated.
- The environment's last observation (with ``done``, or after ``max_turns``) is not appended, since no action follows.
- Metrics: ``turns``; ``whole_chats``, of chats: turns whose cost grew with it, since the template had to show it all;
  ``end/NAME`` for each ``EpisodeEnd``, 1 for the one that it was; for each metric of the environment its last value,
  as ``env/NAME``, and for each named reward of turns its sum, as ``env/reward/NAME``.
- An environment that fails costs what ``on_error`` says. Token ids of an observation that
  are none of the model's are such a failure. Errors of the engine always end the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from rlhf_core import EnvironmentFailure, RolloutError, first_error
from rlhf_core.contracts import EpisodeEnd, RolloutContext, Task, Trajectory, Uid
from rlhf_episodes import GuardedEnvironment

from .budgets import OutOfTime
from .config import MultiTurnConfig
from .episode import Episode

log = logging.getLogger(__name__)

SHOWN_FAILURES = 10
"""Failures that are logged as warnings; later ones are in the run's log alone."""


class MultiTurn:
    """Runs the episodes of a group at the same time."""

    def __init__(self, config: MultiTurnConfig) -> None:
        self._config = config
        self._num_failures = 0

    async def run(
        self, task: Task, samples: Sequence[int], context: RolloutContext
    ) -> list[Trajectory]:
        """Return the trajectories of the samples, in the order of ``samples``.

        Raises:
            RolloutError: the engine failed, or an environment with ``on_error`` fail; the other episodes were cancelled
                and their environments closed.
        """
        try:
            async with asyncio.TaskGroup() as group:
                episodes = [
                    group.create_task(self._episode(task, sample, context)) for sample in samples
                ]
        except ExceptionGroup as errors:
            raise first_error(errors) from errors
        return [trajectory for episode in episodes for trajectory in episode.result()]

    async def _episode(self, task: Task, sample: int, context: RolloutContext) -> list[Trajectory]:
        """Return one episode's trajectories; none if it was left out."""
        uid = task.uid._replace(sample=sample)
        try:
            return await self._played(uid, task, context)
        except (EnvironmentFailure, OutOfTime) as failure:
            if self._config.on_error == "fail":
                raise
            self._log(failure, "The episode is left out")
            context.drop(uid, failure.reason)
            return []

    async def _played(self, uid: Uid, task: Task, context: RolloutContext) -> list[Trajectory]:
        episode = Episode(uid, context, self._config)
        async with self._environment(uid, task, context) as play:
            try:
                end = await episode.play(play, task)
            except EnvironmentFailure as failure:
                if self._config.on_error != "value" or not episode.num_turns:
                    raise
                self._log(failure, f"The episode ends with {self._config.error_reward:g}")
                episode.fail(self._config.error_reward)
                end = EpisodeEnd.ENVIRONMENT_ERROR
        return episode.trajectories(end)

    @asynccontextmanager
    async def _environment(
        self, uid: Uid, task: Task, context: RolloutContext
    ) -> AsyncIterator[GuardedEnvironment]:
        if context.environment is None:
            raise RolloutError(
                f"{uid}: multi_turn needs an environment; choose one with --env",
                code="environment/none",
            )
        make = partial(context.environment, task)
        label = partial(context.environment_label, task)
        limit, option = self._config.environment_timeout_s, "environment_timeout_s"
        play = GuardedEnvironment(uid, make, limit, f"--rollout.multi_turn.{option}", label)
        try:
            yield play
        except BaseException:
            # The first error has to be reported, not a failure to close after it.
            with suppress(RolloutError):
                await play.close()
            raise
        try:
            await play.close()
        except EnvironmentFailure as failure:
            # The episode is whole.
            if self._config.on_error == "fail":
                raise
            self._log(failure, "The episode counts")

    def _log(self, failure: RolloutError, consequence: str) -> None:
        self._num_failures += 1
        level = logging.WARNING if self._num_failures <= SHOWN_FAILURES else logging.INFO
        policy = f"as --rollout.multi_turn.on_error {self._config.on_error} says"
        log.log(level, "%s. %s, %s.", failure, consequence, policy)
        if self._num_failures == SHOWN_FAILURES:
            log.warning("Further failures of environments are in the run's log alone.")
