"""One episode with a server: messages to the model, its answers to the environment, until one of them ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rlhf_core import ConfigError, RLHFError
from rlhf_core.contracts import (
    Action,
    EpisodeEnd,
    Message,
    Observation,
    SamplingParams,
    Stop,
    Task,
    Uid,
)
from rlhf_episodes import GuardedEnvironment
from rlhf_trainer.inference import eval_seed

from .answers import ChatAnswer
from .client import ChatClient, ChatRequest
from .texts import content_of


@dataclass(slots=True, kw_only=True)
class RemoteEpisode:
    """An episode in the making."""

    uid: Uid
    messages: list[Message]
    """The conversation so far."""
    tools: Sequence[Mapping[str, Any]] = ()
    prompt_messages: int = 0
    """Number of messages before the first answer."""
    answers: list[ChatAnswer] = field(default_factory=list)
    reward: float = 0.0
    """Sum of what the environment gave."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The environment's rewards of the whole episode, by name."""
    metrics: dict[str, float] = field(default_factory=dict)
    end: EpisodeEnd = EpisodeEnd.FINISHED

    @property
    def response(self) -> str:
        """Answers and environment text after the prompt."""
        later = self.messages[self.prompt_messages :]
        return "\n".join(filter(None, map(content_of, later)))

    @property
    def truncated(self) -> bool:
        return bool(self.answers) and self.answers[-1].stop is Stop.LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTalk:
    """Settings of the episodes of one job."""

    client: ChatClient
    task: Task
    prompt: tuple[Message, ...]
    """The task's own prompt; empty where it has none."""
    sampling: SamplingParams
    seed: int
    """The run's."""
    temperature_index: int
    max_turns: int

    async def answer_once(self, sample: int) -> RemoteEpisode:
        """Return an episode without an environment: one answer to the prompt."""
        episode = self._begin(sample, self.prompt)
        await self._ask(episode)
        episode.end = EpisodeEnd.LENGTH if episode.truncated else EpisodeEnd.FINISHED
        return episode

    async def play(self, sample: int, environment: GuardedEnvironment) -> RemoteEpisode:
        """Return an episode with an environment, which is closed in the end.

        Raises:
            RolloutError: the environment or the server failed.
        """
        try:
            episode = await self._play(sample, environment)
        except BaseException:
            # The first error has to be reported, not a failure to close after it.
            with suppress(RLHFError):
                await environment.close()
            raise
        await environment.close()
        return episode

    async def _play(self, sample: int, environment: GuardedEnvironment) -> RemoteEpisode:
        # As multi_turn: all episodes of a task face the same problem.
        observation = await environment.reset(self.task, self._seed(0, -1))
        episode = self._begin(sample, self._messages(observation) or self.prompt)
        episode.tools = observation.tools
        episode.end = EpisodeEnd.TURNS
        for turn in range(self.max_turns):
            answer = await self._ask(episode)
            result = await environment.step(_action(answer, turn))
            episode.reward += result.reward + sum(result.rewards.values())
            for name, value in result.rewards.items():
                key = f"env/reward/{name}"
                episode.metrics[key] = episode.metrics.get(key, 0.0) + value
            episode.metrics |= {f"env/{name}": value for name, value in result.metrics.items()}
            if result.done:
                episode.end = EpisodeEnd.FINISHED
                break
            if turn < self.max_turns - 1:
                episode.messages += self._messages(result.observation)
        episode.rewards = await environment.episode_rewards()
        episode.reward += sum(episode.rewards.values())
        return episode

    def _messages(self, observation: Observation) -> tuple[Message, ...]:
        """Return an observation as messages."""
        if observation.token_ids is not None:
            raise ConfigError(
                f"{self.task.uid}: its observation is token ids, which no chat server reads. Evaluate the model's "
                "folder with an engine, or have the environment give text or messages.",
                code="eval/tokens-for-a-server",
            )
        if observation.text is not None:
            return ({"role": "user", "content": observation.text},)
        return observation.messages

    def _begin(self, sample: int, messages: Sequence[Message]) -> RemoteEpisode:
        uid = self.task.uid._replace(sample=sample)
        return RemoteEpisode(uid=uid, messages=list(messages), prompt_messages=len(messages))

    async def _ask(self, episode: RemoteEpisode) -> ChatAnswer:
        turn = len(episode.answers)
        answer = await self.client.answer(
            ChatRequest(
                name=f"{episode.uid}, turn {turn}",
                messages=episode.messages,
                tools=episode.tools,
                sampling=self.sampling,
                seed=self._seed(episode.uid.sample, turn),
            )
        )
        episode.answers.append(answer)
        episode.messages.append(answer.message())
        return answer

    def _seed(self, sample: int, turn: int) -> int:
        return eval_seed(self.seed, self.temperature_index, self.task, sample, turn)


def _action(answer: ChatAnswer, turn: int) -> Action:
    return Action(
        text=answer.text,
        token_ids=(),
        stop=answer.stop,
        turn=turn,
        reasoning=answer.reasoning,
        content=answer.text,
        tool_calls=answer.tool_calls,
    )
