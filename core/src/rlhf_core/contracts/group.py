"""A group, the episodes of one prompt, for runtimes that play and score it in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..batch.task import Task
from ..batch.trajectory_columns import TrajectoryColumns
from .engine import SamplingParams

SeedOf = Callable[[Task, int, int], int]
"""``seed_of(task, sample, turn)``: the 64-bit seed of a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """What a group is a function of beside its task, the weights, and what ``RolloutSpec`` names.

    The same object for very many groups, so a player may send it once.
    """

    num_samples: int
    sampling: SamplingParams
    max_length: int
    seed_of: SeedOf
    """A function of a module with its first arguments (``functools.partial``), which are sent instead of its code."""
    with_greedy: bool = False
    """One more episode at temperature 0, of which the others keep the reward as a metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """What became of a group."""

    batch: TrajectoryColumns | None
    """Scored, ordered by uid; None if it was dropped."""
    dropped: str | None = None
    """Why it was dropped: a sample could not be scored."""


class GroupPlayer(Protocol):
    """Plays and scores groups in other processes, where their tokens may stay."""

    async def play(self, task: Task, settings: GroupSettings) -> FinishedGroup:
        """Return the group, equal to the bit to one that this process plays itself.

        Raises:
            RLHFError: an episode failed, or a sample could not be scored and its reward's policy is to fail.
        """
        ...
