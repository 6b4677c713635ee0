"""The driver's line to one rollout worker: sends many groups in one message, and hands each finished group to the
caller that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import ray

from rlhf_core.contracts import FinishedGroup, GroupSettings, Task, TokenColumns

from ..processes.process import ActorProcess
from ..processes.supervisor import Supervisor, future_of
from .group_messages import GroupJob, GroupsDone, unpack_done


class GroupLine:
    """Plays groups on one rollout worker, with few messages.

    All groups that callers ask for in one iteration of the event loop go to the worker in one ``begin``. While the
    worker still has groups to finish, one ``done`` is pending, which returns all groups that have ended by then.

    Args:
        process: the rollout worker.
        next_number: function that returns a number that no other group of the run has.
        timeout_s: deadline for one group.
    """

    def __init__(
        self,
        process: ActorProcess,
        supervisor: Supervisor,
        next_number: Callable[[], int],
        timeout_s: float,
    ) -> None:
        self._process = process
        self._supervisor = supervisor
        self._next_number = next_number
        self._timeout_s = timeout_s
        self._waiting: dict[int, asyncio.Future[FinishedGroup]] = {}
        """Futures of the groups that the worker has not finished, by number."""
        self._unsent: dict[int, GroupJob] = {}
        self._unsent_stops: list[int] = []
        self._is_flushing = False
        self._is_asking = False

    async def play(self, task: Task, settings: GroupSettings, version: int) -> FinishedGroup:
        """Return the group once the worker has played and scored it.

        Args:
            version: newest version that all engines have; an engine with older weights refuses the group's requests.

        Raises:
            ProcessLost: the worker died, or this group missed its deadline.
            RLHFError: an episode or a reward of the group failed.
        """
        number = self._next_number()
        job = GroupJob(number=number, task=task, settings=settings, version=version)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number], self._unsent[number] = future, job
        self._flush_soon()
        try:
            return await self._supervisor.wait(
                future, self._process.who, f"the group {task.uid}", self._timeout_s
            )
        except asyncio.CancelledError:
            if number not in self._unsent:
                self._unsent_stops.append(number)
                self._flush_soon()
            raise
        finally:
            self._waiting.pop(number, None)
            self._unsent.pop(number, None)

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        jobs, self._unsent = self._unsent, {}
        stops, self._unsent_stops = self._unsent_stops, []
        actor = self._process.actor
        try:
            if jobs:
                begun = future_of(actor.begin.remote(list(jobs.values())))
                begun.add_done_callback(partial(self._begun, jobs))
            if stops:
                actor.stop.remote(stops)
            self._ask()
        except Exception as error:  # asyncio only logs an exception of a callback
            self._fail(jobs, error)

    def _begun(self, jobs: Iterable[int], call: asyncio.Future[Any]) -> None:
        if (error := call.exception()) is not None:
            self._fail(jobs, error)

    def _ask(self) -> None:
        if self._is_asking or not self._waiting:
            return
        done, tokens = self._process.actor.done.remote()
        self._is_asking = True
        future_of(done).add_done_callback(partial(self._receive, tokens))

    def _receive(
        self, tokens: ray.ObjectRef[TokenColumns], answer: asyncio.Future[GroupsDone]
    ) -> None:
        self._is_asking = False
        try:
            done = answer.result()
            for number, group in unpack_done(done, tokens).items():
                self._settle(number, group)
            for number, failure in done.failed.items():
                self._settle(number, failure.error(self._process.who))
            self._ask()
        except Exception as error:  # an error of Ray, or a defect, which asyncio would only log
            self._fail(self._waiting, error)

    def _fail(self, numbers: Iterable[int], error: BaseException) -> None:
        for number in list(numbers):
            self._settle(number, error)

    def _settle(self, number: int, outcome: FinishedGroup | BaseException) -> None:
        """Give the group, or its error, to the caller of ``play``, if this caller still waits."""
        future = self._waiting.pop(number, None)
        if future is None or future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
