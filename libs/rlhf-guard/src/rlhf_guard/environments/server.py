"""One connection, answered: the episodes of one environment, played at the same time on this process's event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from rlhf_core.contracts.environment import Environment, Observation, RewardsEpisodes, StepResult
from rlhf_core.problem import Problem, ProblemKind, problem_of, shown

from .frames import FrameError, packed, read_frame
from .messages import (
    MessageError,
    Plain,
    WrongReturn,
    action_of,
    observation_fields,
    plain_number,
    problem_fields,
    result_fields,
    task_of,
    whole,
)
from .task_pages import TaskPages

MAX_EPISODES = 100_000
"""Largest number of episodes of one connection that are open at the same time."""
MAX_REQUESTS = 100_000
"""Largest number of requests of one connection that are being answered; what comes then waits in the socket."""
CLOSE_LIMIT_S = 10.0
"""Time for closing the episodes of a connection that has ended."""

Make = Callable[[], Environment]
ValueT = TypeVar("ValueT")

log = logging.getLogger(__name__)


class EpisodeServer:
    """The episodes of one connection.

    Args:
        make: makes the environment of an episode.
        reader, writer: the connection, after ``hello``.
        before_sending: called before each frame; see ``end_forked_child``.
    """

    def __init__(
        self,
        make: Make,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        before_sending: Callable[[], None] = lambda: None,
    ) -> None:
        self._make = make
        self._reader = reader
        self._writer = writer
        self._before_sending = before_sending
        self._episodes: dict[int, Environment] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._pages = TaskPages(make)
        self._requests: Mapping[str, Callable[[Plain], Awaitable[Plain]]] = {
            "reset": self._reset,
            "step": self._step,
            "episode_rewards": self._episode_rewards,
            "close": self._close,
            "tasks": self._pages.describe,
            "rows": self._pages.rows,
            "ping": _pong,
            "cancel": _cancel_of_nothing,
        }

    async def serve(self) -> None:
        """Answer requests until the other side closes the connection; then close all episodes.

        Raises:
            FrameError: something came that is no request.
            EOFError, OSError: the connection broke.
        """
        try:
            while (request := await read_frame(self._reader)) is not None:
                self._begin(request)
                while len(self._answering) >= MAX_REQUESTS:
                    await asyncio.wait(
                        self._answering.values(), return_when=asyncio.FIRST_COMPLETED
                    )
        finally:
            await self._end()

    def _begin(self, request: Plain) -> None:
        call = request.get("id")
        if type(call) is not int or call in self._answering:
            raise FrameError(f"a request with id {call!r:.60}; expected a new number")
        if request.get("op") == "cancel" and type(request.get("call")) is int:
            answering = self._answering.get(request["call"])
            if answering is not None:
                answering.cancel()
            return
        task = asyncio.create_task(self._answer(call, request))
        self._answering[call] = task
        task.add_done_callback(lambda _: self._answering.pop(call, None))

    async def _answer(self, call: int, request: Plain) -> None:
        answer: Plain
        try:
            answer = {"ok": await self._result(request)}
        except asyncio.CancelledError:  # Nobody waits for the answer, unless this process ends.
            answer = _problem(ProblemKind.DIED, "was cancelled, because the server ends")
        except WrongReturn as error:
            answer = _problem(ProblemKind.RETURNED, str(error))
        except BaseException as error:
            # Sys.exit() of an environment is an error of that environment.
            answer = {"problem": problem_fields(problem_of(error))}
        try:
            frame = packed({"id": call, **answer})
        except FrameError as error:
            problem = _problem(ProblemKind.RETURNED, f"gave an answer that {error}")
            frame = packed({"id": call, **problem})
        self._before_sending()
        # A connection that broke ends ``serve``, which says so.
        with suppress(OSError):
            self._writer.write(frame)
            await self._writer.drain()

    async def _result(self, request: Plain) -> Plain:
        handler = self._requests.get(str(request.get("op")))
        if handler is None:
            raise MessageError(f"there is no request {request.get('op')!r:.60}")
        return await handler(request)

    async def _reset(self, request: Plain) -> Plain:
        episode, seed = whole(request, "episode"), whole(request, "seed")
        if episode in self._episodes or len(self._episodes) >= MAX_EPISODES:
            raise MessageError(
                f"episode {episode} cannot begin beside {len(self._episodes)} open ones; expected a new number, and at "
                f"most {MAX_EPISODES} episodes"
            )
        task = _read(task_of, request, "task")
        environment = self._make()
        self._episodes[episode] = environment
        observation = _checked(await environment.reset(task, seed), Observation)
        return {
            "observation": observation_fields(observation),
            "rewards_episodes": isinstance(environment, RewardsEpisodes),
        }

    async def _step(self, request: Plain) -> Plain:
        environment = self._environment(request)
        action = _read(action_of, request, "action")
        return result_fields(_checked(await environment.step(action), StepResult))

    async def _episode_rewards(self, request: Plain) -> Plain:
        environment = self._environment(request)
        if not isinstance(environment, RewardsEpisodes):
            return {"rewards": {}}
        rewards = _checked(await environment.episode_rewards(), Mapping)  # type: ignore[type-abstract]
        return {"rewards": {name: plain_number(value) for name, value in rewards.items()}}

    async def _close(self, request: Plain) -> Plain:
        environment = self._episodes.pop(whole(request, "episode"), None)
        if environment is not None:
            await environment.close()
        return {}

    def _environment(self, request: Plain) -> Environment:
        environment = self._episodes.get(whole(request, "episode"))
        if environment is None:
            raise MessageError(f"there is no open episode {request['episode']}")
        return environment

    async def _end(self) -> None:
        """Cancel what is being answered, and close all episodes."""
        answering = list(self._answering.values())
        for task in answering:
            task.cancel()
        episodes, self._episodes = list(self._episodes.values()), {}
        work = [*answering, *(asyncio.ensure_future(_closed(one)) for one in episodes)]
        if work:
            await asyncio.wait(work, timeout=CLOSE_LIMIT_S)


async def _closed(environment: Environment) -> None:
    try:
        await environment.close()
    except Exception:
        log.warning("an episode could not be closed after its connection had ended", exc_info=True)


async def _pong(request: Plain) -> Plain:
    return {}


async def _cancel_of_nothing(request: Plain) -> Plain:
    raise MessageError(
        f"cancel names no request: expected its number in call, got {request.get('call')!r:.60}"
    )


def _read(read: Callable[[Mapping[str, Any]], ValueT], request: Plain, name: str) -> ValueT:
    try:
        return read(request[name])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise MessageError(
            f"its {name} cannot be read ({type(error).__name__}: {error})"
        ) from error


def _checked(value: Any, kind: type[ValueT]) -> ValueT:
    if not isinstance(value, kind):
        raise WrongReturn(
            f"returned {shown(value)} ({type(value).__name__}); expected {kind.__name__}"
        )
    return value


def _problem(kind: ProblemKind, text: str) -> Plain:
    return {"problem": problem_fields(Problem(kind=kind, text=text))}
