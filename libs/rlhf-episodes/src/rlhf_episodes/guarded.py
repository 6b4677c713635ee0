"""A guard around an environment, which turns its errors into failures that name uid, turn and environment."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any, TypeVar

from rlhf_core import EnvironmentFailure, RLHFError, first_error
from rlhf_core.contracts import (
    Action,
    Environment,
    Observation,
    RewardsEpisodes,
    StepResult,
    Task,
    Uid,
)

from .holding import WATCH

MAX_REWARD = 1e35
"""Largest reward of a turn. Rewards are kept in float32, at most 3.4e38, and rewards of several turns are added up."""

ResultT = TypeVar("ResultT")


class GuardedEnvironment:
    """The environment of one episode.

    Every method raises an EnvironmentFailure if the environment raises an exception, returns a result of a type other
    than the contract's, gives a number that is not finite, or takes longer than ``limit_s`` seconds. An environment
    that waits is cancelled then. One that computes without waiting holds up all episodes and cannot be interrupted; a
    line of the log says so (``holding.LoopWatch``).

    Args:
        make: builds the environment.
        limit_option: the option that is the limit, for messages.
        label: returns name and version of the environment, for messages; empty: its class's name stands for it.

    Raises:
        EnvironmentFailure: ``make`` failed.
    """

    def __init__(
        self,
        uid: Uid,
        make: Callable[[], Environment],
        limit_s: float,
        limit_option: str,
        label: Callable[[], str] = str,
    ) -> None:
        self._uid = uid
        self._limit_s = limit_s
        self._limit_option = limit_option
        self._turn = 0
        self._label = label
        self._name = ""
        self._class = "the environment"
        try:
            self._environment = make()
        except (Exception, SystemExit) as error:
            raise self._error("making", error) from error
        self._class = type(self._environment).__qualname__

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the episode, and return the first observation."""
        self._name = task.environment
        observation = await self._guard("reset", self._environment.reset, task, seed)
        return self._checked("reset", observation, Observation)

    async def step(self, action: Action) -> StepResult:
        """Return the environment's answer to one turn, with rewards and metrics as finite floats."""
        self._turn = action.turn
        answer = await self._guard("step", self._environment.step, action)
        result = self._checked("step", answer, StepResult)
        self._checked("step", result.observation, Observation, "observation = ")
        rewards = self._numbers("step", "rewards", result.rewards)
        reward = self._finite("step", "reward", result.reward)
        self._bounded("step", reward + sum(rewards.values()))
        metrics = self._numbers("step", "metrics", result.metrics)
        return replace(result, reward=reward, rewards=rewards, metrics=metrics)

    async def episode_rewards(self) -> dict[str, float]:
        """Return the rewards of the whole episode by name, as finite floats; none if the environment gives none."""
        if not isinstance(self._environment, RewardsEpisodes):
            return {}
        given = await self._guard("episode_rewards", self._environment.episode_rewards)
        rewards = self._numbers("episode_rewards", "rewards", given)
        self._bounded("episode_rewards", sum(rewards.values()))
        return rewards

    async def close(self) -> None:
        """Have the environment release its resources."""
        await self._guard("close", self._environment.close)

    def located(self, failure: EnvironmentFailure, call: str) -> EnvironmentFailure:
        """Return a failure with uid, turn and environment in its message."""
        return failure.with_text(f"{self._where(call)}: {failure}")

    async def _guard(
        self, call: str, method: Callable[..., Awaitable[ResultT]], *arguments: object
    ) -> ResultT:
        limit = asyncio.timeout(self._limit_s)
        try:
            async with limit:
                return await WATCH.run(self._called(), call, method, *arguments)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._error(call, error) from error  # the environment cancelled itself
        except (Exception, SystemExit) as error:
            if not limit.expired():
                raise self._error(call, error) from error
            raise EnvironmentFailure(
                f"{self._where(call)} did not return within {self._limit_s:g} s; if it needs longer, raise "
                f"{self._limit_option}",
                code="environment/too-slow",
            ) from error

    def _checked(self, call: str, value: object, kind: type[ResultT], field: str = "") -> ResultT:
        if not isinstance(value, kind):
            found = f"{field}a {type(value).__name__}"
            raise EnvironmentFailure(
                f"{self._where(call)} returned {found}; expected {kind.__name__}",
                code="environment/wrong-answer",
            )
        return value

    def _numbers(self, call: str, what: str, named: object) -> dict[str, float]:
        if not isinstance(named, Mapping) or not all(isinstance(name, str) for name in named):
            raise EnvironmentFailure(
                f"{self._where(call)} gave {what} = {named!r:.200}; expected numbers by name",
                code="environment/not-numbers",
            )
        return {name: self._finite(call, name, value) for name, value in named.items()}

    def _finite(self, call: str, name: str, value: Any) -> float:
        number = value.item() if getattr(value, "ndim", None) == 0 else value
        if not isinstance(number, Real) or not math.isfinite(number):
            raise EnvironmentFailure(
                f"{self._where(call)} gave {name} = {value!r:.200}; expected one finite number",
                code="environment/not-a-number",
            )
        return float(number)

    def _bounded(self, call: str, reward: float) -> None:
        if abs(reward) > MAX_REWARD:
            raise EnvironmentFailure(
                f"{self._where(call)} gave the reward {reward:g}; expected at most {MAX_REWARD:g}",
                code="environment/reward-too-large",
            )

    def _error(self, call: str, error: BaseException) -> EnvironmentFailure:
        if isinstance(error, Exception):
            error = first_error(error)  # of an environment that does several things at once
        return EnvironmentFailure(
            f"{self._where(call)} raised {type(error).__name__}: {error}",
            code=(isinstance(error, RLHFError) and error.own_code) or "environment/raised",
        )

    def _called(self) -> str:
        """Return the environment's name in the run; a run's only one need not be named by its tasks."""
        return self._name or self._label().partition("@")[0] or self._class

    def _where(self, call: str) -> str:
        return f"{self._uid}, turn {self._turn}: {call} of {self._label() or self._class}"
