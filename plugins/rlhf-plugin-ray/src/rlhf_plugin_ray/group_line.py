"""The driver's end of what it has with one rollout worker: gathers groups to be played, and gives each its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import ray

from rlhf_core.contracts import FinishedGroup, GroupTerms, Task

from .group_messages import GroupJob, GroupsDone, unpack_done
from .process import Process
from .supervisor import Supervisor, future_of


class GroupLine:
    """Sends a worker what was asked for in one turn of the event loop together, and asks it again and again, as long
    as it owes groups, which of them have ended.

    Args:
        next_number: counts the groups of a run.
    """

    def __init__(
        self,
        process: Process,
        supervisor: Supervisor,
        next_number: Callable[[], int],
        timeout_s: float,
    ) -> None:
        self._process = process
        self._supervisor = supervisor
        self._next_number = next_number
        self._timeout_s = timeout_s
        self._waiting: dict[int, asyncio.Future[FinishedGroup]] = {}
        """The groups that the worker owes."""
        self._unsent: dict[int, GroupJob] = {}
        self._unsent_stops: list[int] = []
        self._is_flushing = False
        self._is_asking = False

    async def play(self, task: Task, terms: GroupTerms, version: int) -> FinishedGroup:
        """Return the group when the worker has played it.

        Raises:
            ProcessLost: the worker died, or this group missed its deadline.
            RLHFError: the group failed.
        """
        number = self._next_number()
        job = GroupJob(number=number, task=task, terms=terms, version=version)
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
        except Exception as error:  # a callback's would only be logged
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

    def _receive(self, tokens: ray.ObjectRef, answer: asyncio.Future[GroupsDone]) -> None:
        self._is_asking = False
        try:
            done = answer.result()
            for number, group in unpack_done(done, tokens).items():
                self._settle(number, group)
            for number, failure in done.failed.items():
                self._settle(number, failure.error(self._process.who))
            self._ask()
        except Exception as error:  # Ray's, or a fault that would else only be logged
            self._fail(self._waiting, error)

    def _fail(self, numbers: Iterable[int], error: BaseException) -> None:
        for number in list(numbers):
            self._settle(number, error)

    def _settle(self, number: int, outcome: FinishedGroup | BaseException) -> None:
        """Give it to who waits for the group, if somebody still does."""
        future = self._waiting.pop(number, None)
        if future is None or future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
