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
