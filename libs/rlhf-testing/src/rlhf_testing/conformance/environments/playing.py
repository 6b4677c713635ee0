"""Episodes of an environment without a model: players that answer, and what an episode was, for comparing."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeVar

from rlhf_core.batch.task import Message, Task
from rlhf_core.batch.trajectory import Stop
from rlhf_core.contracts.environment import (
    Action,
    Environment,
    KnowsAnswers,
    Observation,
    RewardsEpisodes,
    StepResult,
    ToolCall,
)
from rlhf_core.media.parts import image_parts, is_seen, plain_messages

from ...fake_renderer import FakeRenderer

MAX_TURNS = 200
"""Turns in which an episode has to end by itself."""
STEP_LIMIT_S = 60.0
"""Seconds after which a call of an environment counts as one that hangs, also on a busy machine."""
IMAGE = "[image]"
"""Word in the place of an image in what players read."""
ORACLE = "oracle"
"""Column of a row with a right answer: text, or one text for each turn."""

Written = str | Sequence[ToolCall]
"""An answer: text, or calls of functions."""
Wrote = Callable[["Situation"], Awaitable[Written]]
"""A player: writes the answer of the turn that comes."""
ResultT = TypeVar("ResultT")

_RENDERER = FakeRenderer()


@dataclass(slots=True, kw_only=True)
class Situation:
    """An episode so far, as a player sees it before it answers."""

    environment: Environment
    task: Task
    turn: int = 0
    read: list[str] = field(default_factory=list)
    """Texts that the policy read so far: the first observation or the task's prompt, then one for each turn."""


@dataclass(slots=True, kw_only=True)
class CheckedEpisode:
    """An episode that was played."""

    read: list[str]
    """Texts that the policy read."""
    seen: list[str] = field(default_factory=list)
    """Digest of each image that the policy saw."""
    rewards: list[float] = field(default_factory=list)
    """Reward of each turn, and of the whole episode at the end, if the environment judges it."""
    metrics: dict[str, float] = field(default_factory=dict)
    turns: int = 0
    ended: bool = False
    """The environment said that the episode is over."""
    written: list[Written] = field(default_factory=list)

    @property
    def observed(self) -> list[str]:
        """Texts that the policy read, then the digests of what it saw."""
        return [*self.read, *self.seen]

    @property
    def reward(self) -> float:
        """All of it."""
        return math.fsum(self.rewards)


def course_of(episode: CheckedEpisode) -> list[str]:
    """Return what was read, seen and earned as texts, in which NaN is itself."""
    return [*map(repr, episode.observed), *map(repr, episode.rewards)]


async def played(
    environment: Environment, task: Task, seed: int, player: Wrote, *, turns: int = MAX_TURNS
) -> CheckedEpisode:
    """Play one episode, and close the environment.

    Raises:
        AssertionError: a call took longer than ``STEP_LIMIT_S``, or returned something else than it must.
    """
    try:
        first = await within(environment.reset(task, seed), "reset")
        assert isinstance(first, Observation), (
            f"reset returned {shown(first)}; expected an Observation"
        )
        situation = Situation(environment=environment, task=task, read=[_first_text(first, task)])
        episode = CheckedEpisode(read=situation.read, seen=_digests(first))
        while not episode.ended and episode.turns < turns:
            situation.turn = episode.turns
            written = await within(player(situation), "the player")
            result = await within(environment.step(action_of(written, episode.turns)), "step")
            assert isinstance(result, StepResult), (
                f"step returned {shown(result)}; expected a StepResult"
            )
            episode.written.append(written)
            episode.rewards.append(math.fsum([result.reward, *result.rewards.values()]))
            episode.metrics |= result.metrics
            episode.turns += 1
            episode.ended = bool(result.done)
            if not episode.ended:
                situation.read.append(text_of(result.observation))
                episode.seen += _digests(result.observation)
        if isinstance(environment, RewardsEpisodes):
            judged = await within(environment.episode_rewards(), "episode_rewards")
            episode.rewards.append(math.fsum(judged.values()))
        return episode
    finally:
        await within(environment.close(), "close")


async def within(work: Awaitable[ResultT], call: str) -> ResultT:
    """Return what a call gives.

    Raises:
        AssertionError: it took longer than ``STEP_LIMIT_S``.
    """
    limit = asyncio.timeout(STEP_LIMIT_S)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"{call} did not return within {STEP_LIMIT_S:g} s") from None


def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run episodes on an event loop of their own."""
    return asyncio.run(work)


def action_of(written: Written, turn: int, stop: Stop = Stop.EOS) -> Action:
    """Return an answer as the executor hands it over."""
    if isinstance(written, str):
        return Action(
            text=written, token_ids=tuple(_RENDERER.encode(written)), stop=stop, turn=turn
        )
    text = "".join(f"<tool_call>{call.name} {call.arguments}</tool_call>" for call in written)
    return Action(
        text=text,
        token_ids=tuple(_RENDERER.encode(text)),
        stop=stop,
        turn=turn,
        content="",
        tool_calls=tuple(written),
    )


def text_of(observation: Observation) -> str:
    """Return what the policy reads of an observation. An image stands there as one word: no player sees it."""
    if observation.messages:
        return "\n".join(map(_content, observation.messages))
    if observation.token_ids is not None:
        return _RENDERER.decode(observation.token_ids)
    return observation.text or ""


def always(*answers: Written) -> Wrote:
    """Return a player that writes these answers in turn, and the last one from then on."""

    async def write(situation: Situation) -> Written:
        return answers[min(situation.turn, len(answers) - 1)]

    return write


async def right(situation: Situation) -> Written:
    """Write the right answer: that of the environment itself, or of the task's row."""
    if isinstance(situation.environment, KnowsAnswers):
        return await situation.environment.oracle()
    known = situation.task.row[ORACLE]
    if isinstance(known, str):
        return known
    answer: str = known[min(situation.turn, len(known) - 1)]
    return answer


@contextmanager
def named(what: str) -> Iterator[None]:
    """Say in which episode something went wrong: exceptions become AssertionErrors that begin with ``what``.

    Raises:
        AssertionError: the block raised an exception.
    """
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {shown(str(error))}") from error


def shown(value: object, most: int = 80) -> str:
    """Return a value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _first_text(first: Observation, task: Task) -> str:
    return (
        text_of(first)
        or "\n".join(map(_content, task.messages))
        or _RENDERER.decode(task.prompt_ids)
    )


def _content(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list | tuple) and any(map(is_seen, content)):
        content = [IMAGE if is_seen(part) else part for part in content]
    return content if isinstance(content, str) else json.dumps(content, default=str)


def _digests(observation: Observation) -> list[str]:
    """Return what tells an observation's images apart, whatever they were given as; Pillow's repr has an address."""
    seen = image_parts(plain_messages(observation.messages))
    texts = (json.dumps(part, default=str, sort_keys=True) for part in seen)
    return [f"image {sha256(text.encode()).hexdigest()}" for text in texts]


def prompt_of(row: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[Message, ...]]:
    """Return tokens and messages of a row's prompt; both are empty if it has none."""
    prompt = row.get("prompt")
    if prompt is None:
        return (), ()
    if isinstance(prompt, str):
        return tuple(_RENDERER.encode(prompt)), ()
    messages = tuple(prompt)
    return tuple(_RENDERER.render(messages)), messages
