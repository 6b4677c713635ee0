"""An environment whose errors name the episode, with a deadline for each call."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from rlhf_core import ConfigError, EnvironmentFailure, RLHFError
from rlhf_core.contracts import (
    Action,
    Environment,
    Message,
    Observation,
    RewardsEpisodes,
    StepResult,
    Task,
)

ResultT = TypeVar("ResultT")


class GuardedEnvironment:
    """An environment of one episode.

    Args:
        where: names of episode and environment, for messages.
        limit_s: seconds for each call.
    """

    def __init__(self, environment: Environment, where: str, limit_s: float) -> None:
        self._environment = environment
        self._where = where
        self._limit_s = limit_s

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the episode, and return the first observation."""
        observation = await self._guard("reset", self._environment.reset(task, seed))
        return self._of_kind("reset", observation, Observation)

    async def step(self, action: Action) -> StepResult:
        """Return the answer to one turn; its rewards and metrics are finite."""
        result = self._of_kind(
            "step", await self._guard("step", self._environment.step(action)), StepResult
        )
        self._check_finite("step", {"reward": result.reward} | dict(result.rewards))
        self._check_finite("step", result.metrics)
        return result

    async def episode_rewards(self) -> Mapping[str, float]:
        """Return the rewards of the whole episode by name; none where the environment has no such judgement."""
        if not isinstance(self._environment, RewardsEpisodes):
            return {}
        rewards = await self._guard("episode_rewards", self._environment.episode_rewards())
        self._check_finite("episode_rewards", rewards)
        return rewards

    async def close(self) -> None:
        """Have the environment release what it holds."""
        await self._guard("close", self._environment.close())

    def messages(self, observation: Observation) -> tuple[Message, ...]:
        """Return an observation as messages.

        Raises:
            ConfigError: it is token ids, which no server reads.
        """
        if observation.token_ids is not None:
            raise ConfigError(
                f"{self._where}: its observation is token ids, which no chat server reads. Evaluate the model's folder "
                "with an engine, or have the environment give text or messages.",
                code="eval/tokens-for-a-server",
            )
        if observation.text is not None:
            return ({"role": "user", "content": observation.text},)
        return observation.messages

    async def _guard(self, call: str, result: Awaitable[ResultT]) -> ResultT:
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                return await result
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                raise EnvironmentFailure(
                    f"{self._where}: {call} did not return within {self._limit_s:g} s; if it needs longer, raise "
                    "--remote.environment_timeout_s",
                    code="environment/too-slow",
                ) from error
            raise EnvironmentFailure(
                f"{self._where}: {call} raised {type(error).__name__}: {error}",
                code=(isinstance(error, RLHFError) and error.own_code) or "environment/raised",
            ) from error

    def _of_kind(self, call: str, value: object, kind: type[ResultT]) -> ResultT:
        if not isinstance(value, kind):
            raise EnvironmentFailure(
                f"{self._where}: {call} returned a {type(value).__name__}; expected {kind.__name__}",
                code="environment/wrong-answer",
            )
        return value

    def _check_finite(self, call: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise EnvironmentFailure(
                    f"{self._where}: {call} gave {name} = {value!r}; expected one finite number",
                    code="environment/not-a-number",
                )
