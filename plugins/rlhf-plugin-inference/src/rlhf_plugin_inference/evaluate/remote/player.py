"""One job with a server: its episodes, played in messages and scored, as records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from rlhf_core import EnvironmentFailure, first_error
from rlhf_core.contracts import Environment, Message, RewardRequest, Task
from rlhf_episodes import GuardedEnvironment
from rlhf_trainer.inference import PromptFormat, SampleScore, fault_point

from ..jobs import EvalJob
from ..options import EvalOptions
from ..records import EpisodeRecord, left_out
from .client import ChatClient
from .talking import RemoteEpisode, ServerTalk
from .texts import as_text

if TYPE_CHECKING:
    from rlhf_trainer.rollouts.worker import QueuedRewards

log = logging.getLogger(__name__)

MakeEnvironment = Callable[[Task], Environment]


@asynccontextmanager
async def remote_player(
    options: EvalOptions, environment: MakeEnvironment | None, scores: QueuedRewards | None
) -> AsyncIterator[ServerPlayer]:
    """Return a context with a player of jobs, connected to the server.

    Raises:
        ConfigError: nothing answers there, the key is refused, or there is no such model.
    """
    client = ChatClient(options.remote)
    try:
        await client.open()
        yield ServerPlayer(options, client, environment, scores)
    finally:
        await client.close()


class ServerPlayer:
    """``PlaysJobs`` through a server."""

    def __init__(
        self,
        options: EvalOptions,
        client: ChatClient,
        environment: MakeEnvironment | None,
        scores: QueuedRewards | None,
    ) -> None:
        self._options = options
        self._client = client
        self._environment = environment
        self._scores = scores
        self._format = PromptFormat.of(options.data)

    async def play(self, job: EvalJob) -> list[EpisodeRecord]:
        fault_point("generate", job.number)
        talk = ServerTalk(
            client=self._client,
            task=job.task,
            prompt=self._prompt(job.task),
            sampling=self._options.rollout.at(job.temperature),
            seed=self._options.seed,
            temperature_index=job.temperature_index,
            max_turns=self._options.remote.max_turns,
        )
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(self._episode(talk, sample)) for sample in range(job.samples)
                ]
        except ExceptionGroup as errors:
            raise first_error(errors) from errors
        played = [task.result() for task in running]
        episodes = [one for one in played if one is not None]
        found: Sequence[SampleScore | None] = [None] * len(episodes)
        if self._scores is not None and episodes:
            found = await self._scores.score([_request(job.task, one) for one in episodes])
        records = iter([_record(job, *pair) for pair in zip(episodes, found, strict=True)])
        return [
            left_out(job, sample, "environment_failed") if one is None else next(records)
            for sample, one in enumerate(played)
        ]

    async def close(self) -> None:
        if self._scores is not None:
            await self._scores.close()

    def _prompt(self, task: Task) -> tuple[Message, ...]:
        if not task.prompt_ids:
            return ()
        prompt = self._format.prompt(task.row)
        return ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt

    async def _episode(self, talk: ServerTalk, sample: int) -> RemoteEpisode | None:
        """Return an episode; None where its environment failed, and such ones are left out."""
        if self._environment is None:
            return await talk.answer_once(sample)
        uid, make = talk.task.uid._replace(sample=sample), partial(self._environment, talk.task)
        limit_s = self._options.remote.environment_timeout_s
        try:
            guarded = GuardedEnvironment(uid, make, limit_s, "--remote.environment_timeout_s")
            return await talk.play(sample, guarded)
        except EnvironmentFailure as trouble:
            if self._options.remote.on_error == "fail":
                raise
            log.warning("%s. The episode is left out.", trouble)
            return None


def _request(task: Task, episode: RemoteEpisode) -> RewardRequest:
    return RewardRequest(
        uid=str(episode.uid),
        row=task.row,
        prompt=as_text(episode.messages[: episode.prompt_messages]),
        response=episode.response,
        token_ids=(),
        action_mask=(),
        turns=(),
        truncated=episode.truncated,
    )


def _record(job: EvalJob, episode: RemoteEpisode, score: SampleScore | None) -> EpisodeRecord:
    dropped = None if score is None else score.dropped
    by_rewards = 0.0 if score is None else score.reward or 0.0
    uncounted = sum(answer.tokens_out is None for answer in episode.answers)
    metrics = dict(episode.metrics) | ({} if score is None else dict(score.metrics))
    if uncounted:
        metrics["answers_without_usage"] = float(uncounted)
    return EpisodeRecord(
        set=job.set,
        temperature=job.temperature,
        uid=str(episode.uid),
        task=job.key,
        digest=job.digest,
        prompt=as_text(episode.messages[: episode.prompt_messages]),
        messages=tuple(episode.messages),
        response=episode.response,
        segments=None,
        reward=None if dropped else episode.reward + by_rewards,
        rewards={**episode.rewards, **({} if score is None else score.rewards)},
        metrics=metrics,
        end=episode.end.value,
        turns=len(episode.answers),
        tokens_in=sum(answer.tokens_in or 0 for answer in episode.answers),
        tokens_out=sum(answer.tokens_out or 0 for answer in episode.answers),
        truncated=episode.truncated,
        dropped=dropped,
    )
