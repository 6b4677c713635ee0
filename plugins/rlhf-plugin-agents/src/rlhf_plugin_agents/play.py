"""A guard around an environment, which turns its errors into a RolloutError that names uid, turn and environment."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from numbers import Real
from typing import Any, TypeVar

from rlhf_core import RolloutError
from rlhf_core.contracts import Action, Environment, Observation, StepResult, Task, Uid

MAX_REWARD = 1e35
"""Largest reward of a turn. Rewards are kept in float32, at most 3.4e38, and rewards of several turns are added up."""

ResultT = TypeVar("ResultT")


class Play:
    """The environment of one episode.

    Every method raises a RolloutError if the environment raises an exception, returns a result of a type other than the
    contract's, gives a number that is not finite, or takes longer than ``timeout_s`` seconds.

    Args:
        make: builds the environment.

    Raises:
        RolloutError: ``make`` failed.
    """

    def __init__(self, uid: Uid, make: Callable[[], Environment], timeout_s: float) -> None:
        self._uid = uid
        self._timeout_s = timeout_s
        self._turn = 0
        self._name = "the environment"
        try:
            self._environment = make()
        except Exception as error:
            raise self._error("making", error) from error
        self._name = type(self._environment).__qualname__

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the episode, and return the first observation."""
        observation = await self._guard("reset", self._environment.reset, task, seed)
        return self._checked("reset", observation, Observation)

    async def step(self, action: Action) -> StepResult:
        """Return the environment's answer to one turn, with reward and metrics as finite floats."""
        self._turn = action.turn
        answer = await self._guard("step", self._environment.step, action)
        result = self._checked("step", answer, StepResult)
        reward = self._finite("reward", result.reward)
        if abs(reward) > MAX_REWARD:
            raise RolloutError(
                f"{self._where('step')} gave the reward {reward:g}; expected at most {MAX_REWARD:g}"
            )
        metrics = {name: self._finite(name, value) for name, value in result.metrics.items()}
        return replace(result, reward=reward, metrics=metrics)

    async def close(self) -> None:
        """Have the environment release its resources."""
        await self._guard("close", self._environment.close)

    async def _guard(
        self, call: str, method: Callable[..., Awaitable[ResultT]], *arguments: object
    ) -> ResultT:
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                return await method(*arguments)
        except Exception as error:
            if not limit.expired():
                raise self._error(call, error) from error
            raise RolloutError(
                f"{self._where(call)} did not return within {self._timeout_s:g} s; if it needs longer, raise "
                "--rollout.multi_turn.environment_timeout_s"
            ) from error

    def _checked(self, call: str, value: object, kind: type[ResultT]) -> ResultT:
        if not isinstance(value, kind):
            raise RolloutError(
                f"{self._where(call)} returned a {type(value).__name__}; expected {kind.__name__}"
            )
        return value

    def _finite(self, name: str, value: Any) -> float:
        number = value.item() if getattr(value, "ndim", None) == 0 else value
        if not isinstance(number, Real) or not math.isfinite(number):
            raise RolloutError(
                f"{self._where('step')} gave {name} = {value!r}; expected one finite number"
            )
        return float(number)

    def _error(self, call: str, error: Exception) -> RolloutError:
        return RolloutError(f"{self._where(call)} raised {type(error).__name__}: {error}")

    def _where(self, call: str) -> str:
        return f"{self._uid}, turn {self._turn}: {call} of {self._name}"
