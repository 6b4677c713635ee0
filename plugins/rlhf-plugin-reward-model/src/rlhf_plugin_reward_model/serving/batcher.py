"""The batcher, which puts the sequences of concurrent requests into common forward passes.

The batcher never waits for further requests. The requests that arrive while the model computes are the next batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rlhf_core import RewardError

Score = float | RewardError
"""Score of a sequence, or the reason why it has none."""
ScoreFunction = Callable[[Sequence[Any]], list[Score]]
"""Function that returns the scores of sequences, in order. Of a sequence the batcher knows its length in tokens."""


class Full(Exception):
    """A request that is refused because too many sequences wait already."""


@dataclass(frozen=True, slots=True)
class _Job:
    sequences: Sequence[Sized]
    done: asyncio.Future[list[Score]]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.sequences))


class Batcher:
    """Runs the model in one thread. ``start`` has to come before ``submit``, and ``close`` at the end in any case.

    Args:
        score: function that runs the model.
        batch_tokens: number of tokens after which a batch takes no further request.
        max_waiting: largest number of sequences that wait.
    """

    def __init__(self, score: ScoreFunction, *, batch_tokens: int, max_waiting: int) -> None:
        self._score = score
        self._batch_tokens = batch_tokens
        self._max_waiting = max_waiting
        self._jobs: deque[_Job] = deque()
        self._work = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reward model")
        self._task: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Number of sequences that no forward pass has taken yet."""
        return sum(len(job.sequences) for job in self._jobs)

    def start(self) -> None:
        """Start to take requests, in the running event loop."""
        self._task = asyncio.create_task(self._run())

    async def submit(self, sequences: Sequence[Sized]) -> list[Score]:
        """Return the scores, in order. Sequences of a cancelled caller are not computed, unless this has begun.

        Raises:
            Full: more than ``max_waiting`` sequences would wait.
            RewardError: the server stops.
        """
        if not sequences:
            return []
        if self._jobs and self.num_waiting + len(sequences) > self._max_waiting:
            raise Full(f"{self.num_waiting} sequences wait; at most {self._max_waiting} may")
        job = _Job(sequences, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._work.set()
        return await job.done

    async def close(self) -> None:
        """Stop. Callers that still wait get a ``RewardError``.

        The forward pass in work goes on in its thread: it cannot be stopped. Who ends the process says for how long
        (``rlhf_trainer.inference.leave_within``).
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for job in self._jobs:
            if not job.done.done():
                job.done.set_exception(RewardError("the server stops", code="reward-model/server"))
        self._jobs.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while jobs := self._take():
                await self._answer(jobs)

    def _take(self) -> list[_Job]:
        taken: list[_Job] = []
        tokens = 0
        while self._jobs and (not taken or tokens + self._jobs[0].num_tokens <= self._batch_tokens):
            job = self._jobs.popleft()
            if not job.done.done():  # a done future belongs to a caller that was cancelled
                taken.append(job)
                tokens += job.num_tokens
        return taken

    async def _answer(self, jobs: Sequence[_Job]) -> None:
        sequences = [sequence for job in jobs for sequence in job.sequences]
        try:
            scores = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._score, sequences
            )
        except asyncio.CancelledError:
            for job in jobs:
                if not job.done.done():
                    job.done.set_exception(
                        RewardError("the server stops", code="reward-model/server")
                    )
            raise
        except Exception as error:
            if len(jobs) == 1:
                if not jobs[0].done.done():
                    jobs[0].done.set_exception(error)
                return
            # For example out of memory. Each request is tried alone, so that none fails because of another.
            for job in jobs:
                await self._answer([job])
            return
        start = 0
        for job in jobs:
            if not job.done.done():
                job.done.set_result(scores[start : start + len(job.sequences)])
            start += len(job.sequences)
