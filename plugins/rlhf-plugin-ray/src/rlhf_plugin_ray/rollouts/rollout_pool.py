"""The rollout workers as the loop calls them: one pool, which outlives the death of any worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count

from rlhf_core.contracts import FinishedGroup, GroupSettings, RolloutSpec, Task

from ..config import RayRuntimeConfig
from ..engines.router import EngineRouter
from ..processes.crew import Crew
from ..processes.process import ActorProcess, killed_on_error
from ..processes.supervisor import Supervisor
from .group_line import GroupLine
from .rollout_actor import EngineTable, Patience, Seat

Launch = Callable[[int], Awaitable[ActorProcess]]
"""Coroutine function that starts the process of rollout worker ``index``, and returns this process."""


class RolloutPool:
    """Implements ``rlhf_core.contracts.GroupPlayer`` over several rollout workers.

    A group goes to the worker with the fewest episodes in progress. When this worker dies, the pool sends the group to
    another worker with the same seeds, so the trajectories are the same. No episode comes twice, since a worker returns
    a group whole or not at all.

    The workers can start before the engines: ``connect`` tells them which engines serve.

    Args:
        judge: process that computes the rewards of all workers; None: each worker computes its own.
    """

    def __init__(
        self,
        launch: Launch,
        spec: RolloutSpec,
        supervisor: Supervisor,
        config: RayRuntimeConfig,
        judge: ActorProcess | None = None,
    ) -> None:
        self._launch = launch
        self._spec = spec
        self._judge = judge
        self._router: EngineRouter | None = None
        self._supervisor = supervisor
        self._config = config
        self._num_tables = 0
        self._lines: dict[ActorProcess, GroupLine] = {}
        self._next_number = count().__next__
        self.crew = Crew(
            "rollout worker",
            self._launch_ready,
            supervisor,
            max_restarts=config.max_rollout_restarts,
            option="runtime.ray.max_rollout_restarts",
        )
        self.crew.follow(self._forget_lines)

    def connect(self, router: EngineRouter) -> None:
        """Have the workers ask the engines of this router, which may start later."""
        self._router = router
        router.crew.follow(self._tell_of_engines)
        self._tell_of_engines()

    async def play(self, task: Task, settings: GroupSettings) -> FinishedGroup:
        """Return a group that a worker has played and scored. The group's tokens stay in the worker's object store.

        Raises:
            RLHFError: an episode or a reward failed, or no worker is left.
        """
        assert self._router is not None, "connect comes first"
        version = self._router.version
        return await self.crew.dispatch.give(
            lambda process: self._line(process).play(task, settings, version),
            what=f"the group {task.uid}",
            size=settings.num_samples,
        )

    def _line(self, process: ActorProcess) -> GroupLine:
        if process not in self._lines:
            self._lines[process] = GroupLine(
                process, self._supervisor, self._next_number, self._config.rollout_timeout_s
            )
        return self._lines[process]

    def _forget_lines(self) -> None:
        """Drop the lines to workers that are gone."""
        alive = [member.process for member in self.crew.members]
        self._lines = {process: line for process, line in self._lines.items() if process in alive}

    async def _launch_ready(self, index: int) -> ActorProcess:
        process = await self._launch(index)
        patience = Patience(
            generate_s=self._config.generate_timeout_s,
            replacement_s=self._config.start_timeout_s + self._config.setup_timeout_s,
            score_s=self._config.rollout_timeout_s,
        )
        with killed_on_error(process.actor):
            await self._supervisor.result(
                process.actor.start.remote(self._spec, index, self._table(), patience, self._judge),
                process.who,
                "start",
                self._config.setup_timeout_s,
            )
        # The engines may have changed during the start; this table has a larger number than the one above.
        process.actor.engines.remote(self._table())
        return process

    def _tell_of_engines(self) -> None:
        """Send the table of engines to all workers, without waiting: the crew notices a worker that has died."""
        table = self._table()
        for member in self.crew.members:
            member.process.actor.engines.remote(table)

    def _table(self) -> EngineTable:
        self._num_tables += 1
        if self._router is None:
            return EngineTable(number=self._num_tables, seats=(), over=None)
        engines = self._router.crew
        return EngineTable(
            number=self._num_tables,
            seats=tuple(Seat(index=m.index, process=m.process) for m in engines.members),
            over=engines.over,
        )
