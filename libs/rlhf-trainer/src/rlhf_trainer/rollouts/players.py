"""Players of groups: this process with its own executor and rewards, or other processes of the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from rlhf_core.batch.task import Task, Uid
from rlhf_core.contracts.executor import FinishedGroup, GroupPlayer
from rlhf_core.storage.faults import fault_point

from .episodes import EpisodeRunner
from .played import PlayedGroup
from .reward_queue import RewardQueue

PlayedT = TypeVar("PlayedT")
ResultT_co = TypeVar("ResultT_co", covariant=True)


class Player(Protocol[PlayedT, ResultT_co]):
    """Turns a task into a finished group by ``play``, then ``finish``. A group holds its slot during ``play`` only."""

    def compared(self, tasks: Sequence[Task]) -> frozenset[Uid]:
        """Return the prompts whose samples carry log-probs."""
        ...

    async def play(self, task: Task, step: int, *, with_logprobs: bool) -> PlayedT:
        """Generate all episodes of a task."""
        ...

    def num_actions(self, played: PlayedT) -> int:
        """Return the number of action tokens that were generated."""
        ...

    async def finish(self, task: Task, played: PlayedT, step: int) -> ResultT_co:
        """Return the group with its rewards."""
        ...

    async def close(self) -> None: ...


class LocalPlayer:
    """Plays groups with the executor and the rewards of this process."""

    def __init__(self, episodes: EpisodeRunner) -> None:
        self._episodes = episodes
        self._rewards = RewardQueue(episodes.score)

    def compared(self, tasks: Sequence[Task]) -> frozenset[Uid]:
        return self._episodes.compared(tasks)

    async def play(self, task: Task, step: int, *, with_logprobs: bool) -> PlayedGroup:
        played = await self._episodes.play(task, with_logprobs=with_logprobs)
        fault_point("generate", step)
        return played

    def num_actions(self, played: PlayedGroup) -> int:
        return played.num_actions

    async def finish(self, task: Task, played: PlayedGroup, step: int) -> FinishedGroup:
        finished = await self._rewards.put(played)
        fault_point("reward", step)
        return finished

    async def close(self) -> None:
        await self._rewards.close()


class RemotePlayer:
    """Has groups played and scored in other processes."""

    def __init__(self, groups: GroupPlayer, episodes: EpisodeRunner) -> None:
        self._groups = groups
        self._episodes = episodes

    def compared(self, tasks: Sequence[Task]) -> frozenset[Uid]:
        return self._episodes.compared(tasks)

    async def play(self, task: Task, step: int, *, with_logprobs: bool) -> FinishedGroup:
        settings = self._episodes.settings(with_logprobs=with_logprobs)
        finished = await self._groups.play(task, settings)
        fault_point("generate", step)
        return finished

    def num_actions(self, played: FinishedGroup) -> int:
        return 0 if played.batch is None else int(played.batch.num_actions.sum())

    async def finish(self, task: Task, played: FinishedGroup, step: int) -> FinishedGroup:
        fault_point("reward", step)
        return played

    async def close(self) -> None:
        """Do nothing: the runtime ends its own processes."""


def player_for(episodes: EpisodeRunner, groups: GroupPlayer | None) -> Player[Any, FinishedGroup]:
    """Return the player of a run: other processes if the runtime offers ``groups``, else this process."""
    return LocalPlayer(episodes) if groups is None else RemotePlayer(groups, episodes)
