"""The process of a rollout worker: runs executors and environments on the CPU, and asks the engines itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ray

from rlhf_core import RolloutError
from rlhf_core.contracts import (
    Completion,
    FinishedGroup,
    GenerationRequest,
    Generator,
    RolloutContext,
    RolloutSpec,
    SamplingParams,
    Task,
    TokenColumns,
)
from rlhf_core.rollout_process import GroupRunner, RolloutParts, open_rewards, open_rollouts

from .actor import Actor
from .dispatch import Dispatcher, Member
from .group_messages import GroupJob, GroupsDone
from .groups_under_way import GroupsUnderWay
from .packed_trajectories import PackedTrajectories, pack
from .process import Process
from .supervisor import ProcessLost, Supervisor

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """An engine that serves."""

    index: int
    process: Process


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTable:
    """The engines that serve, as the driver knows them."""

    number: int
    """Counts the changes; a worker ignores a table older than its own."""
    seats: tuple[Seat, ...]
    over: str | None
    """Why there will be no engine any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a worker waits, in seconds."""

    generate_s: float
    """For one request to an engine."""
    replacement_s: float
    """For the driver to tell of another engine when none is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJob:
    """The episodes of one prompt: the arguments of ``RolloutExecutor.run`` as plain values."""

    task: Task
    samples: tuple[int, ...]
    seed: Callable[[int, int], int]
    """A function of a module with its first arguments, which are sent instead of its code."""
    sampling: SamplingParams
    max_length: int
    version: int
    """Of the newest weights when it was sent; engines with older ones refuse."""


class RolloutActor(Actor):
    """Made empty; ``prepare`` and then ``start`` make it a rollout worker."""

    def __init__(self) -> None:
        self._parts: RolloutParts
        self._runner: GroupRunner | None = None
        self._engines: EngineDirectory
        self._groups = GroupsUnderWay(self._play)

    async def start(
        self, spec: RolloutSpec, index: int, table: EngineTable, patience: Patience
    ) -> None:
        """Build what episodes need.

        Args:
            index: of this worker; which engine it asks first depends on it.
        """
        self._parts = open_rollouts(spec, self._plugins)
        self._runner = GroupRunner(self._parts, open_rewards(spec, self._plugins))
        await self._runner.start()
        self._engines = EngineDirectory(patience, first=index)
        self._engines.update(table)

    async def engines(self, table: EngineTable) -> None:
        """Learn which engines serve from now on."""
        self._engines.update(table)

    async def run(self, job: RolloutJob) -> PackedTrajectories:
        """Run the episodes and return them, packed.

        Raises:
            RLHFError: an episode failed, or no engine is left.
        """
        parts = self._parts
        context = RolloutContext(
            engine=self._engines_at(job.version),
            renderer=parts.renderer,
            sampling=job.sampling,
            max_length=job.max_length,
            seed=job.seed,
            environment=parts.environment,
        )
        return pack(await parts.executor.run(job.task, job.samples, context))

    async def begin(self, jobs: Sequence[GroupJob]) -> None:
        """Start to play and score groups; ``done`` hands them over."""
        self._groups.begin(jobs)

    async def stop(self, numbers: Sequence[int]) -> None:
        """End groups that nobody waits for any more."""
        self._groups.stop(numbers)

    @ray.method(num_returns=2)
    async def done(self) -> tuple[GroupsDone, TokenColumns | None]:
        """Wait for groups to end; what is large of them comes apart, to stay in this machine's object store."""
        return await self._groups.done()

    async def close(self) -> None:
        """End the groups and the rewards; environments end with their episodes."""
        await self._groups.close()
        if self._runner is not None:
            await self._runner.close()

    async def _play(self, job: GroupJob) -> FinishedGroup:
        assert self._runner is not None, "start comes first"
        return await self._runner.play(job.task, job.terms, self._engines_at(job.version))

    def _engines_at(self, version: int) -> Generator:
        return _EnginesAt(self._engines, version)


class EngineDirectory:
    """The engines as this process knows them: told by the driver, less those that it saw dying."""

    def __init__(self, patience: Patience, *, first: int) -> None:
        self._patience = patience
        self._table = EngineTable(number=-1, seats=(), over=None)
        self._changed = asyncio.Event()
        """Set, and replaced, by each new table."""
        self._dispatch = Dispatcher(Supervisor(), lose=self._lose, more=self._more, first=first)

    def update(self, table: EngineTable) -> None:
        """Take over a table, keeping what is known of engines that stay."""
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
        """Return one completion per seed, from whichever engine survives long enough."""
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
        # The driver sees it end, and starts another.
        ray.kill(member.process.actor)

    async def _more(self, what: str) -> None:
        if self._table.over is not None:
            raise RolloutError(f"{what}: {self._table.over}")
        patience_s = self._patience.replacement_s
        try:
            async with asyncio.timeout(patience_s):
                await self._changed.wait()
        except TimeoutError as error:
            raise RolloutError(
                f"{what}: no engine is left, and none was started anew within {patience_s:g} s"
            ) from error


@dataclass(frozen=True, slots=True)
class _EnginesAt:
    """The engines as an executor sees them. Weights older than ``version`` are refused."""

    directory: EngineDirectory
    version: int

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        return await self.directory.generate(request, self.version)
