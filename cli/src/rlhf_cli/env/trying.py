"""The command ``rlhf env try``: an episode in the terminal, in which a person writes what the policy would."""

from __future__ import annotations

import asyncio
import io
import json
import os
import select
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf_core import ConfigError
from rlhf_core.contracts import (
    Action,
    Environment,
    KnowsAnswers,
    MakesTasks,
    Observation,
    RewardsEpisodes,
    StepResult,
    Task,
    ToolCall,
)
from rlhf_core.media.given import KEYS, is_pillow
from rlhf_core.media.parts import is_seen

from ..kit import require_kit
from .chosen import Name, chosen
from .printing import plain

_LOOK_S = 0.2
"""Seconds for which a thread looks for input; Ctrl-C waits for it to end."""
_CHUNK = 65_536

if TYPE_CHECKING:
    from rlhf_testing.conformance.environments.playing import Written

CALL = "/call "
CONSTANT = "constant:"
LONGEST_NAME = 200
"""Characters of an image's path that is shown; longer texts are images in base64."""


def try_environment(
    context: typer.Context,
    name: Name,
    policy: Annotated[
        str | None,
        typer.Option(
            help="who answers the environment: constant:TEXT or oracle; unset: you, with one line for each turn "
            "(/call NAME JSON calls a tool)"
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="split of the tasks to play")] = "train",
    task: Annotated[int, typer.Option(min=0, help="number of the task in its split")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="seed of the episode")] = 0,
    turns: Annotated[
        int, typer.Option(min=1, help="number of turns after which the episode ends")
    ] = 100,
) -> None:
    """Play one episode of an environment. Its own options may follow."""
    require_kit("rlhf env try")
    found = chosen(name, context.args)
    environment = found.make()
    played = _task(environment, found.registered.name, split, task)
    typer.echo(f"{found.label}, task {played.row.get('key', task)}, seed {seed}")
    answers = _answers(policy, played)
    asyncio.run(_Trial(environment, played, answers).play(seed, turns))


class _Trial:
    """One episode, shown as it goes."""

    def __init__(self, environment: Environment, task: Task, answers: _Answers) -> None:
        self._environment = environment
        self._task = task
        self._answers = answers
        self._earned = 0.0
        self._metrics: dict[str, float] = {}

    async def play(self, seed: int, turns: int) -> None:
        end = f"left after {turns} turns"
        try:
            first = await self._environment.reset(self._task, seed)
            self._show_first(first)
            for turn in range(turns):
                action = await self._act(turn)
                if action is None:
                    end = "aborted: there are no more answers"
                    break
                result = await self._environment.step(action)
                self._show(result)
                if result.done:
                    end = f"finished after {turn + 1} turns"
                    break
            if isinstance(self._environment, RewardsEpisodes):
                self._add(await self._environment.episode_rewards(), "reward of the episode")
        finally:
            await self._environment.close()
        numbers = "".join(f", {name} {value:g}" for name, value in self._metrics.items())
        typer.echo(f"end: {end}; reward {self._earned:g}{numbers}")

    async def _act(self, turn: int) -> Action | None:
        from rlhf_testing.conformance.environments.playing import action_of

        written = await self._answers(self._environment, turn)
        return None if written is None else action_of(written, turn)

    def _show_first(self, first: Observation) -> None:
        for tool in first.tools:
            _say("tool", json.dumps(tool.get("function", tool), ensure_ascii=False, default=str))
        if not (first.text or first.messages or first.token_ids):
            prompt = self._task.row.get("prompt", "")
            first = (
                Observation(text=prompt)
                if isinstance(prompt, str)
                else Observation(messages=tuple(prompt))
            )
        _show_observation(first)

    def _show(self, result: StepResult) -> None:
        self._add({"": result.reward} if result.reward or not result.rewards else {}, "reward")
        self._add(result.rewards, "reward")
        self._metrics |= result.metrics
        _show_observation(result.observation)

    def _add(self, rewards: Mapping[str, float], what: str) -> None:
        for name, value in rewards.items():
            self._earned += value
            _say(f"{what} {name}".strip(), f"{value:g}")


_Answers = Callable[[Environment, int], "Awaitable[Written | None]"]


def _answers(policy: str | None, task: Task) -> _Answers:
    """Return what writes the answers: a coroutine function of environment and turn, which gives None at the end."""
    if policy is None:
        return _Typed()
    if policy.startswith(CONSTANT):
        text = policy.removeprefix(CONSTANT)

        async def constant(environment: Environment, turn: int) -> Written:
            _say("policy", text)
            return text

        return constant
    if policy != "oracle":
        raise ConfigError(
            f"--policy {policy}: expected constant:TEXT or oracle", code="usage/policy"
        )

    async def oracle(environment: Environment, turn: int) -> Written:
        from rlhf_testing.conformance.environments.playing import Situation, right

        if not isinstance(environment, KnowsAnswers) and "oracle" not in task.row:
            raise ConfigError(
                "--policy oracle: expected an environment with a method oracle, or a row with a column oracle; got "
                "neither. Answer yourself, without --policy",
                code="usage/policy",
            )
        written = await right(Situation(environment=environment, task=task, turn=turn))
        _say("policy", written if isinstance(written, str) else str(list(written)))
        return written

    return oracle


class _Typed:
    """Answers from the standard input, a line each; None at its end."""

    def __init__(self) -> None:
        self._lines = InputLines()

    async def __call__(self, environment: Environment, turn: int) -> Written | None:
        if sys.stdin.isatty():
            print("policy> ", end="", flush=True)
        text = await self._lines.next()
        if text is None:
            return None
        if not sys.stdin.isatty():
            _say("policy", text)
        if text.startswith(CALL):
            name, _, arguments = text.removeprefix(CALL).partition(" ")
            return (ToolCall(name=name, arguments=arguments or "{}", id=f"call_{turn}"),)
        return text


def _task(environment: Environment, name: str, split: str, number: int) -> Task:
    from rlhf_testing.conformance.environments.material import task_of

    if not isinstance(environment, MakesTasks):
        return task_of({}, number)
    try:
        made = environment.tasks(split)
        if isinstance(made, Sequence):
            rows = [made[number]] if number < len(made) else []
        else:
            rows = list(islice(made, number, number + 1))
    except KeyError as error:
        raise ConfigError(
            f"--split {split}: {name} has no such split of tasks. Choose another --split",
            code="data/unknown-split",
        ) from error
    if not rows:
        raise ConfigError(
            f"--task {number}: the split {split} of {name} ends before it. Choose another --task",
            code="data/no-task",
        )
    return task_of(rows[0], number)


def _show_observation(observation: Observation) -> None:
    for role, text in _spoken(observation):
        _say(role, text)


def _spoken(observation: Observation) -> Iterator[tuple[str, str]]:
    for message in observation.messages:
        yield str(message.get("role", "environment")), _in_words(message.get("content"))
    if observation.text:
        yield "environment", observation.text
    if observation.token_ids:
        yield "environment", f"tokens {list(observation.token_ids)}"


def _in_words(content: object) -> str:
    """Return a content for the terminal: an image as its size or its file, never its bytes."""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple) and any(map(is_seen, content)):
        return " ".join(_picture(part) if is_seen(part) else _in_words(part) for part in content)
    if isinstance(content, Mapping) and isinstance(content.get("text"), str):
        return str(content["text"])
    return json.dumps(content, default=str)


def _picture(part: Mapping[str, Any]) -> str:
    kind = str(part.get("type", "image")).removesuffix("_url")
    # Any: an image may be given in many forms, and Pillow need not be installed.
    held: Any = next((part[key] for key in KEYS if part.get(key) is not None), None)
    if is_pillow(held):
        width, height = held.size
        return f"[{kind} {width} x {height}]"
    named = isinstance(held, Path) or (isinstance(held, str) and not held.startswith("data:"))
    return f"[{kind} {held}]" if named and len(str(held)) <= LONGEST_NAME else f"[{kind}]"


def _say(who: str, text: str) -> None:
    typer.echo(f"{who}> {plain(text)}")


class InputLines:
    """The lines of the standard input."""

    def __init__(self) -> None:
        self._left = b""
        self._ended = False
        try:
            self._descriptor: int | None = sys.stdin.fileno()
        except (AttributeError, io.UnsupportedOperation):
            self._descriptor = None  # A test's own, which never waits.

    async def next(self) -> str | None:
        """Return the next line, without its end; None at the end of the input."""
        if self._descriptor is None:
            line: str = sys.stdin.readline()
            return line.rstrip("\r\n") if line else None
        while b"\n" not in self._left and not self._ended:
            await self._read(self._descriptor)
        if not self._left:
            return None
        line_bytes, _, self._left = self._left.partition(b"\n")
        return line_bytes.decode("utf-8", errors="replace").rstrip("\r")

    async def _read(self, descriptor: int) -> None:
        ready, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], _LOOK_S)
        if ready:
            found = os.read(descriptor, _CHUNK)
            self._left += found
            self._ended = not found
