"""Environment of one episode that runs elsewhere: the contract on this side, requests of the wire on the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from rlhf_config.isolation import IsolationOptions
from rlhf_core.batch.task import Task
from rlhf_core.contracts.environment import Action, Observation, StepResult
from rlhf_core.errors import EnvironmentFailure, RolloutError
from rlhf_core.problem import Problem, ProblemKind

from ..processes.variables import with_hint, worker_variables
from .connection import Connection, RequestFailed
from .frames import FrameError
from .messages import (
    MessageError,
    Plain,
    action_fields,
    numbers_of,
    observation_of,
    result_of,
    task_fields,
)

ValueT = TypeVar("ValueT")

_CODES = {
    ProblemKind.RAISED: "environment/raised",
    ProblemKind.RETURNED: "environment/wrong-answer",
    ProblemKind.TIMED_OUT: "environment/too-slow",
    ProblemKind.DIED: "environment/died",
    ProblemKind.NOT_REACHED: "environment/failed",
}
"""Kind of a failure of an environment's code -> the error's code, unless it raised one of ours, which has its own."""

_episodes = itertools.count()


class EpisodeHost(Protocol):
    """The part of a host that its episodes see."""

    name: str
    origin: str
    options: IsolationOptions

    async def connection(self) -> tuple[Connection, str]: ...


class IsolatedEnvironment:
    """One episode, in a worker or at a server.

    Every method raises a RolloutError that names the environment, its version, the worker and the task if the
    environment raises an exception there, dies, hangs, or answers with something that it must not.
    """

    def __init__(self, host: EpisodeHost) -> None:
        self._host = host
        self._episode = next(_episodes)
        self._connection: Connection | None = None
        self._place = ""
        self._uid = ""
        self._rewards_episodes = False

    def __str__(self) -> str:
        return f"{self._host.name} ({self._host.origin})"

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the episode in the next worker."""
        self._uid = str(task.uid)
        self._connection, self._place = await self._host.connection()
        answer = await self._call("reset", task=task_fields(task), seed=seed)
        self._rewards_episodes = answer.get("rewards_episodes") is True
        return self._read("reset", observation_of, answer.get("observation"))

    async def step(self, action: Action) -> StepResult:
        """Answer one turn."""
        return self._read("step", result_of, await self._call("step", action=action_fields(action)))

    async def episode_rewards(self) -> Mapping[str, float]:
        """Return the rewards of the whole episode; none, if the environment does not judge episodes."""
        if not self._rewards_episodes:
            return {}
        answer = await self._call("episode_rewards")
        return self._read(
            "episode_rewards", lambda fields: numbers_of(fields, "rewards"), answer.get("rewards")
        )

    async def close(self) -> None:
        """Release what the episode holds. Nothing is left of it where its worker has ended."""
        if self._connection is None or not self._connection.usable:
            return
        try:
            await self._call("close")
        except RolloutError:
            if self._connection.usable:
                raise

    async def _call(self, op: str, **fields: Any) -> Plain:
        if self._connection is None:
            raise RolloutError(f"{self}: {op} before reset", code="environment/wrong-call")
        try:
            return await self._connection.call(
                op, self._host.options.step_timeout_s, episode=self._episode, **fields
            )
        except RequestFailed as error:
            raise self._error(op, error.problem) from error
        except FrameError as error:
            raise RolloutError(
                f"{self._where(op)}: the request {error}", code="environment/wrong-call"
            ) from error

    def _read(self, op: str, read: Callable[[Any], ValueT], fields: Any) -> ValueT:
        try:
            return read(fields)
        except MessageError as error:
            raise EnvironmentFailure(
                f"{self._where(op)} gave {error}", code="environment/wrong-answer"
            ) from error

    def _error(self, op: str, problem: Problem) -> EnvironmentFailure:
        options = self._host.options
        if options.isolation in ("process", "venv"):
            problem = with_hint(problem, worker_variables(options.pass_env))
        lines = "".join(f"\n    {line}" for line in problem.where)
        return EnvironmentFailure(
            f"{self._where(op)} {problem.text}{lines}", code=problem.code or _CODES[problem.kind]
        )

    def _where(self, op: str) -> str:
        return f"{op} of {self} for task {self._uid}, {self._place},"
