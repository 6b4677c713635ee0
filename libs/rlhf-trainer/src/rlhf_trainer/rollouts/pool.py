"""Pool of groups in the making: started in order, at most ``concurrency`` at a time, and taken when they are complete.

A group waits for a slot, is played, is scored, and stays in the pool until it is taken or discarded. While the pool is
held, no group starts; the source holds it while weights change. Rewards are asked while other groups are being played:
all groups that wait when a call ends go into the next call together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rlhf_core.batch.task import Task
from rlhf_core.contracts.executor import FinishedGroup, GroupPlayer
from rlhf_core.storage.faults import fault_point

from .episodes import EpisodeRunner


@dataclass(slots=True, eq=False, kw_only=True)
class PooledGroup:
    """A group in the pool, from planning until it is taken or discarded."""

    task: Task
    step: int
    """The step that drew it."""
    version: int | None = None
    """Version of the weights when its first episode started; None while it waits for a slot."""
    generated_at: float | None = None
    """Clock time (``time.perf_counter``) at which its last episode ended."""
    work: asyncio.Task[FinishedGroup] = field(init=False)

    @property
    def is_complete(self) -> bool:
        return self.work.done()

    @property
    def key(self) -> tuple[int, int]:
        """(epoch, prompt), by which the ledger knows it."""
        return self.task.uid.epoch, self.task.uid.prompt


GroupT = TypeVar("GroupT")
ScoredT = TypeVar("ScoredT")


class RewardQueue(Generic[GroupT, ScoredT]):
    """Collects groups while a call is under way, and sends them off with the next one.

    Args:
        score: returns one result per group, in order.
    """

    def __init__(self, score: Callable[[Sequence[GroupT]], Awaitable[Sequence[ScoredT]]]) -> None:
        self._score = score
        self._waiting: list[tuple[GroupT, asyncio.Future[ScoredT]]] = []
        self._calls: asyncio.Task[None] | None = None

    async def put(self, group: GroupT) -> ScoredT:
        """Return the result of ``score`` for this group, or raise the error of the call that the group was in."""
        scored: asyncio.Future[ScoredT] = asyncio.get_running_loop().create_future()
        self._waiting.append((group, scored))
        if self._calls is None or self._calls.done():
            self._calls = asyncio.create_task(self._work())
        return await scored

    async def close(self) -> None:
        """End the call that is under way."""
        if self._calls is not None:
            self._calls.cancel()
            await asyncio.gather(self._calls, return_exceptions=True)

    async def _work(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                results = await self._score([group for group, _ in waiting])
            except Exception as error:  # raised where the groups of this call are waited for
                for _, scored in waiting:
                    if not scored.done():
                        scored.set_exception(error)
                continue
            for (_, scored), result in zip(waiting, results, strict=True):
                if not scored.done():
                    scored.set_result(result)


class Player:
    """Has groups played and scored: by other processes, or by this one with its executor and rewards.

    Args:
        groups: player of groups in other processes; None: this process plays them.
    """

    def __init__(self, episodes: EpisodeRunner, groups: GroupPlayer | None = None) -> None:
        self.compared = episodes.compared
        self._episodes = episodes
        self._groups = groups
        self._rewards = RewardQueue(episodes.score)

    async def play(
        self, task: Task, step: int, *, with_logprobs: bool, ended: Callable[[int], None]
    ) -> FinishedGroup:
        """Return the group with its rewards.

        Args:
            ended: called with the number of action tokens when all episodes have ended; rewards here come after it.
        """
        if self._groups is not None:
            settings = self._episodes.settings(with_logprobs=with_logprobs)
            finished = await self._groups.play(task, settings)
            fault_point("generate", step)
            ended(0 if finished.batch is None else int(finished.batch.num_actions.sum()))
        else:
            played = await self._episodes.play(task, with_logprobs=with_logprobs)
            fault_point("generate", step)
            ended(played.num_actions)
            finished = await self._rewards.put(played)
        fault_point("reward", step)
        return finished

    async def close(self) -> None:
        """End the call of rewards that is under way; a runtime ends its own processes."""
        await self._rewards.close()


class Pool:
    """Has groups played and scored by a player.

    Args:
        concurrency: maximum number of groups that are played at the same time; None: no limit.
        version: version of the weights that the engine serves.
    """

    def __init__(self, player: Player, *, concurrency: int | None = None, version: int = 0) -> None:
        self.version = version
        self._player = player
        self._groups: list[PooledGroup] = []
        """Groups in the order in which they were drawn."""
        self._playing: set[PooledGroup] = set()
        self._busy_since = 0.0
        self._busy_s = 0.0
        self._num_tokens = 0
        self._slots = asyncio.Semaphore(concurrency) if concurrency else None
        self._open = asyncio.Event()
        self._open.set()
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def groups(self) -> Sequence[PooledGroup]:
        """Groups that were neither taken nor discarded, in the order in which they were drawn."""
        return tuple(self._groups)

    @property
    def num_playing(self) -> int:
        return len(self._playing)

    @property
    def work_done(self) -> tuple[float, int]:
        """Seconds so far in which at least one group was being played, and action tokens of groups whose episodes have
        ended."""
        now = time.perf_counter() - self._busy_since if self._playing else 0.0
        return self._busy_s + now, self._num_tokens

    def add(self, tasks: Sequence[Task], step: int, *, order: Sequence[int] | None = None) -> None:
        """Plan one group for each task; each starts as soon as it has a slot.

        Args:
            step: the step that draws the tasks.
            order: indices of ``tasks`` in the order in which they get slots; None: as given.
        """
        compared = self._player.compared(tasks)
        groups: dict[int, PooledGroup] = {}
        # A semaphore serves its waiters in the order of their arrival, and tasks run in that of their creation.
        for index in range(len(tasks)) if order is None else order:
            task = tasks[index]
            groups[index] = group = PooledGroup(task=task, step=step)
            work = self._work(group, with_logprobs=task.uid in compared)
            group.work = asyncio.create_task(work, name=f"group {task.uid}")
        self._groups += [groups[index] for index in range(len(tasks))]

    async def take(self, count: int, *, among: int | None = None) -> list[PooledGroup]:
        """Wait until ``count`` of the ``among`` oldest groups are complete, and take them out of the pool.

        If the pool has fewer than ``count`` groups, all are taken; if more are complete, the oldest. The result is in
        the order in which the groups were drawn.

        Raises:
            RLHFError: the error of a group that failed.
        """
        candidates = self._groups[: max(count, among or count)]
        wanted = min(count, len(candidates))
        self._raise_failure(candidates)
        await _ended(candidates, wanted)
        self._raise_failure(candidates)
        taken = [group for group in candidates if group.is_complete][:wanted]
        self._remove(taken)
        return taken

    async def discard(self, groups: Collection[PooledGroup]) -> None:
        """Stop groups and forget them."""
        for group in groups:
            group.work.cancel()
        await asyncio.gather(*(group.work for group in groups), return_exceptions=True)
        self._remove(groups)

    def hold(self) -> None:
        """Let no further group start."""
        self._open.clear()

    async def settled(self) -> None:
        """Return when no group is being played.

        Raises:
            RLHFError: the error of a group that failed.
        """
        await self._quiet.wait()
        self._raise_failure(self._groups)

    def release(self, version: int) -> None:
        """Let groups start again, with the weights of ``version``."""
        self.version = version
        self._open.set()

    async def close(self) -> None:
        """Stop everything."""
        await self.discard(list(self._groups))
        await self._player.close()

    async def _work(self, group: PooledGroup, *, with_logprobs: bool) -> FinishedGroup:
        with ExitStack() as slot:
            if self._slots is not None:
                await self._slots.acquire()
                slot.callback(self._slots.release)
            # A loop, because the pool may be held again between the event and this task's turn.
            while not self._open.is_set():
                await self._open.wait()
            self._enter(group)
            slot.callback(self._leave, group)

            def ended(num_tokens: int) -> None:
                self._num_tokens += num_tokens
                slot.close()

            return await self._player.play(
                group.task, group.step, with_logprobs=with_logprobs, ended=ended
            )

    def _enter(self, group: PooledGroup) -> None:
        group.version = self.version
        if not self._playing:
            self._busy_since = time.perf_counter()
            self._quiet.clear()
        self._playing.add(group)

    def _leave(self, group: PooledGroup) -> None:
        group.generated_at = time.perf_counter()
        self._playing.remove(group)
        if not self._playing:
            self._busy_s += group.generated_at - self._busy_since
            self._quiet.set()

    def _remove(self, groups: Collection[PooledGroup]) -> None:
        gone = set(groups)
        self._groups = [group for group in self._groups if group not in gone]

    @staticmethod
    def _raise_failure(groups: Sequence[PooledGroup]) -> None:
        for group in groups:
            if group.is_complete:
                group.work.result()


async def _ended(groups: Sequence[PooledGroup], count: int) -> None:
    """Return when ``count`` of the groups have ended, or one has failed."""
    pending = [group.work for group in groups if not group.is_complete]
    missing = count - (len(groups) - len(pending))
    enough = asyncio.Event()

    # One callback per group, which counts. asyncio.wait would add all callbacks again after each group that ends: for a
    # thousand groups, a million.
    def note(work: asyncio.Task[Any]) -> None:
        nonlocal missing
        missing -= 1
        if missing <= 0 or work.cancelled() or work.exception() is not None:
            enough.set()

    if missing <= 0:
        return
    for work in pending:
        work.add_done_callback(note)
    try:
        await enough.wait()
    finally:
        for work in pending:
            work.remove_done_callback(note)


async def play_all(player: Player, tasks: Sequence[Task], step: int) -> list[FinishedGroup]:
    """Play and score the groups of some tasks, and return them in the order of the tasks."""
    pool = Pool(player)
    try:
        pool.add(tasks, step)
        return [group.work.result() for group in await pool.take(len(tasks))]
    finally:
        await pool.close()
