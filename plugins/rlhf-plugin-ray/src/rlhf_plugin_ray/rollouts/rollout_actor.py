"""The actor of a rollout worker, which runs executors and environments on the CPU and calls the engines itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import ray

from rlhf_core import RolloutError
from rlhf_core.contracts import (
    Completion,
    FinishedGroup,
    GenerationRequest,
    Generator,
    RolloutSpec,
    TokenColumns,
)
from rlhf_trainer.rollouts.worker import GroupRunner, Rewards, open_rewards, open_rollouts

from ..processes.actor import Actor
from ..processes.dispatch import Dispatcher, Member
from ..processes.process import ActorProcess
from ..processes.supervisor import ProcessLost, Supervisor
from .group_messages import GroupJob, GroupsDone
from .groups_under_way import GroupsUnderWay
from .reward_actor import AskedRewards

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One engine in the table of engines that serve."""

    index: int
    """Number of the engine among all engines, from 0."""
    process: ActorProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTable:
    """The driver's table of the engines that serve."""

    number: int
    """Number of the table; later tables have larger numbers. A worker ignores a table older than its own."""
    seats: tuple[Seat, ...]
    over: str | None
    """Reason why no engine will serve any more; None while one serves or is being started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The deadlines of a rollout worker's waits, in seconds."""

    generate_s: float
    """Deadline of one request to an engine."""
    replacement_s: float
    """Deadline for a table with an engine after the last engine has died."""
    score_s: float
    """Deadline of one group's scores, where one process computes the rewards of all workers."""


class RolloutActor(Actor):
    """A rollout worker in a process of its own. ``prepare`` and ``start`` have to come first, in this order."""

    def __init__(self) -> None:
        self._runner: GroupRunner | None = None
        self._engines: EngineDirectory
        self._groups = GroupsUnderWay(self._play)

    async def start(
        self,
        spec: RolloutSpec,
        index: int,
        table: EngineTable,
        patience: Patience,
        judge: ActorProcess | None,
    ) -> None:
        """Build the executor, the environment and the rewards.

        Args:
            index: number of this worker; workers with different numbers call different engines first.
            table: engines that serve now.
            patience: deadlines of this worker's waits.
            judge: process that computes the rewards of all workers; None: this worker computes its own.
        """
        rewards: Rewards | None = open_rewards(spec, self._plugins)
        if judge is not None:
            rewards = AskedRewards(judge, Supervisor(), patience.score_s)
        self._runner = GroupRunner(open_rollouts(spec, self._plugins), rewards)
        await self._runner.start()
        self._engines = EngineDirectory(patience, first=index)
        self._engines.update(table)

    async def engines(self, table: EngineTable) -> None:
        """Call the engines of this table from now on."""
        self._engines.update(table)

    async def begin(self, jobs: Sequence[GroupJob]) -> None:
        """Start to play and score groups, which ``done`` will return."""
        self._groups.begin(jobs)

    async def stop(self, numbers: Sequence[int]) -> None:
        """Cancel groups that no caller waits for any more."""
        self._groups.stop(numbers)

    @ray.method(num_returns=2)
    async def done(self) -> tuple[GroupsDone, TokenColumns | None]:
        """Wait for groups to end, and return them in two objects.

        The second object holds the tokens, which are large and stay in the object store of this machine.
        """
        return await self._groups.done()

    async def close(self) -> None:
        """Cancel the groups, and close the rewards and what runs environments elsewhere."""
        await self._groups.close()
        if self._runner is not None:
            await self._runner.close()

    async def _play(self, job: GroupJob) -> FinishedGroup:
        assert self._runner is not None, "start comes first"
        return await self._runner.play(job.task, job.settings, self._engines_at(job.version))

    def _engines_at(self, version: int) -> Generator:
        return _EnginesAt(self._engines, version)


class EngineDirectory:
    """The engines that a rollout worker calls: those in the driver's newest table, except those it has seen die.

    Args:
        patience: deadlines for calls of engines.
        first: index of the engine that an idle worker calls first.
    """

    def __init__(self, patience: Patience, *, first: int) -> None:
        self._patience = patience
        self._table = EngineTable(number=-1, seats=(), over=None)
        self._changed = asyncio.Event()
        """Event that is set, and replaced by a new one, by each new table."""
        self._dispatch = Dispatcher(Supervisor(), lose=self._lose, more=self._more, first=first)

    def update(self, table: EngineTable) -> None:
        """Take over a table, unless it is older than the present one. Engines in both tables keep their load."""
        if table.number <= self._table.number:
            return
        self._table = table
        known = {member.process.who: member for member in self._dispatch.members}
        self._dispatch.members[:] = [
            known.get(seat.process.who) or Member(seat.process, seat.index) for seat in table.seats
        ]
        self._changed.set()
        self._changed = asyncio.Event()

    async def generate(self, request: GenerationRequest, version: int) -> list[Completion]:
        """Return one completion per seed, from the first engine that lives long enough to give them.

        Raises:
            RolloutError: the engine refused the request, or no engine is left.
        """
        completions: list[Completion] = await self._dispatch.send(
            lambda actor: actor.generate.remote(request, version),
            what=f"generate for {request.uid}",
            size=len(request.seeds),
            timeout_s=self._patience.generate_s,
        )
        return completions

    def _lose(self, member: Member, error: ProcessLost) -> None:
        if member in self._dispatch.members:
            self._dispatch.members.remove(member)
        log.warning("%s; its requests go to another engine", error)
        # The driver sees the engine's process end, and starts another.
        ray.kill(member.process.actor)

    async def _more(self, what: str) -> None:
        if self._table.over is not None:
            raise RolloutError(f"{what}: {self._table.over}", code="ray/workers-lost")
        patience_s = self._patience.replacement_s
        try:
            async with asyncio.timeout(patience_s):
                await self._changed.wait()
        except TimeoutError as error:
            raise RolloutError(
                f"{what}: no engine is left, and none was restarted within {patience_s:g} s",
                code="ray/workers-lost",
            ) from error


@dataclass(frozen=True, slots=True)
class _EnginesAt:
    """The ``Generator`` that an executor gets. Engines with weights older than ``version`` refuse its requests."""

    directory: EngineDirectory
    version: int

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        return await self.directory.generate(request, self.version)
