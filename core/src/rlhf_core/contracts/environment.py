"""Environments, which answer the policy between its turns. One instance plays one episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..batch.task import Message, Task
from ..batch.trajectory import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Text for the policy to read, in one of three forms. At most one field is set; with none, nothing is added."""

    text: str | None = None
    """Tokenized as it stands."""
    messages: tuple[Message, ...] = ()
    """Rendered with the chat template."""
    token_ids: tuple[int, ...] | None = None
    """Used as they are."""

    def __post_init__(self) -> None:
        given = [self.text is not None, bool(self.messages), self.token_ids is not None]
        if sum(given) > 1:
            raise ValueError("an Observation takes one of text, messages and token_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The policy's answer in one turn."""

    text: str
    """Decoded, without special tokens."""
    token_ids: tuple[int, ...]
    stop: Stop
    turn: int
    """Index of the turn in the episode, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The environment's answer to one action."""

    observation: Observation = field(default_factory=Observation)
    reward: float = 0.0
    """Reward of this turn, placed on the turn's last action token."""
    done: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """Plays one episode: made for it, ``reset`` once, stepped, and always closed, also after an error.

    Its randomness comes from the seed of ``reset`` alone.
    """

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the episode. An empty observation means that the task's own prompt is the first one."""
        ...

    async def step(self, action: Action) -> StepResult:
        """Answer one turn. Not called again after ``done``."""
        ...

    async def close(self) -> None:
        """Release what the episode holds."""
        ...
