"""Rollout executors, which turn a task into trajectories, and players of groups: all episodes of a prompt at once.

A runtime plays and scores groups in processes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..batch.task import Message, Task
from ..batch.trajectory import Trajectory
from ..batch.trajectory_columns import TrajectoryColumns
from .engine import Completion, GenerationRequest, SamplingParams
from .environment import Environment


class Generator(Protocol):
    """The part of an engine that executors see."""

    async def generate(self, request: GenerationRequest) -> list[Completion]: ...


class Renderer(Protocol):
    """Text to tokens and back, by the run's tokenizer and chat template."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def decode_batch(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """Return the text of each sequence, as ``decode`` gives it; faster for many."""
        ...

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation, ending where the policy is to write."""
        ...

    def render_next(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Return the tokens between the policy's last turn and its next one: the template's end of the last turn
        (unless the policy ``ended`` it with end-of-sequence itself), then ``messages``. Earlier tokens are never
        tokenized again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutContext:
    """Tools and settings that an executor works with beside the task."""

    engine: Generator
    renderer: Renderer
    sampling: SamplingParams
    max_length: int
    """Maximum number of tokens of prompt, actions and environment text together."""
    seed: Callable[[int, int], int]
    """``seed(sample, turn)``: the 64-bit seed of a turn."""
    environment: Callable[[Task], Environment] | None = None
    """Makes a fresh environment for an episode of the task; None when the run has none."""


class RolloutExecutor(Protocol):
    """Runs all episodes of one task (a group). Called concurrently for many tasks on one asyncio loop."""

    async def run(
        self, task: Task, samples: Sequence[int], context: RolloutContext
    ) -> list[Trajectory]:
        """Return the trajectories of the given episodes.

        Each carries ``uid = task.uid._replace(sample=..., segment=...)``; an episode may give several segments.
        The result must be a function of the task, the samples, the weights and ``context.seed`` alone.

        Raises:
            RolloutError: an episode failed; the message names its uid.
        """
        ...


SeedOf = Callable[[Task, int, int], int]
"""``seed_of(task, sample, turn)``: the 64-bit seed of a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of a group: with them, its task, the weights and the ``RolloutSpec``, the group is determined.

    Very many groups share one such object, so a player may send it to another process once.
    """

    num_samples: int
    sampling: SamplingParams
    max_length: int
    seed_of: SeedOf
    """A ``functools.partial`` of a module's function, so that it can be pickled: its arguments are sent, not its
    code."""
    with_greedy: bool = False
    """Play one more episode at temperature 0, whose reward becomes a metric of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A group after playing and scoring."""

    batch: TrajectoryColumns | None
    """The scored trajectories, ordered by uid; None if the group was dropped."""
    dropped: str | None = None
    """Reason for dropping the group, which is that a sample could not be scored; None: it was not dropped."""


class GroupPlayer(Protocol):
    """Plays and scores groups in other processes, where their tokens may stay."""

    async def play(self, task: Task, settings: GroupSettings) -> FinishedGroup:
        """Return the group, bitwise equal to the one that this process would play itself.

        Raises:
            RLHFError: an episode failed, or a sample could not be scored and its reward's policy is to fail.
        """
        ...
