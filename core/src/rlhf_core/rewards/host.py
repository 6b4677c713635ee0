"""One reward of a run: batches in, one outcome per sample out, whatever the reward does.

When a batch fails as a whole, its samples are scored again one by one, so that only the guilty ones have no score. All
of it happens within the reward's ``timeout_s``; starting a new process is not counted, and takes about half a second.
How the time is shared:

- The batch may take three quarters of it; a batch of one sample, all of it.
- After that, a single sample may take a quarter of what is left; the last one, all of it.
- Samples that are not reached in time, or after ``MAX_ENDED`` processes have ended, have no score.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from ..config.resolved import Selection
from ..contracts.reward import RewardRequest
from ..errors import RewardError
from .outcome import Outcome, Problem, ProblemKind
from .process import WorkerProcess
from .thread import WorkerThread

BATCH_SHARE = 0.75
"""Of ``timeout_s``, for the first call with the whole batch."""
SAMPLE_SHARE = 0.25
"""Of the time that is left, for a sample that is not the last one. Eight samples that hang leave a tenth of it."""
MAX_ENDED = 16
"""Processes that one batch may end."""
MIN_START_LIMIT_S = 120.0
"""A reward that loads a model needs long to start."""
MAX_REWARD = 1e35
"""Weighted. Rewards are float32 (up to 3.4e38) and are added up."""

log = logging.getLogger(__name__)


class RewardHost:
    """Runs one reward in a process of its own, or in a thread when its options say ``isolate = false``."""

    def __init__(self, selection: Selection) -> None:
        assert selection.reward is not None
        self.selection = selection
        self.options = selection.reward
        self._name = selection.section.rpartition(".")[2]
        kind = WorkerProcess if self.options.isolate else WorkerThread
        self._worker: WorkerProcess | WorkerThread = kind(selection, self._name)
        # One batch at a time: a deadline would mean nothing if batches waited for each other in the worker.
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def name(self) -> str:
        """What the reward is called in metrics: the last word of its section."""
        return self._name

    async def start(self) -> None:
        """Build the reward, so that a file that cannot be used is found before a model is loaded.

        Raises:
            RewardError: it cannot be built; the message has the lines of the user's code.
        """
        problem = await self._worker.start(max(MIN_START_LIMIT_S, self.options.timeout_s))
        if problem is not None:
            origin = self.selection.registered.origin
            raise RewardError(
                f"reward {self._name} ({origin}) could not be built: it {problem.text}"
                + "".join(f"\n    {line}" for line in problem.where)
            )

    async def score(
        self, requests: Sequence[RewardRequest], *, stop_at_problem: bool = False
    ) -> list[Outcome]:
        """Return one outcome per request, in order, within ``timeout_s`` and the time of restarts.

        Args:
            stop_at_problem: end after the first guilty sample is known; those after it are not reached.

        Raises:
            RewardError: the host is closed, a row cannot be sent to the worker, or a new worker cannot be started.
        """
        async with self._turn:
            try:
                outcomes = await self._score(requests, stop_at_problem)
                if not (stop_at_problem or self._worker.alive):
                    # Now, not at the next batch: it starts while the policy trains.
                    await self._restart()
            except asyncio.CancelledError:
                # The worker is in the middle of something that nobody waits for.
                await self._worker.stop()
                raise
        return [self._bounded(outcome) for outcome in outcomes]

    async def close(self) -> None:
        """Stop the worker and everything that it started, also in the middle of a batch."""
        self._closed = True
        await self._worker.stop()
        async with self._turn:
            await self._worker.stop()

    async def _score(
        self, requests: Sequence[RewardRequest], stop_at_problem: bool
    ) -> list[Outcome]:
        budget = _Budget(self.options.timeout_s)
        share = 1.0 if len(requests) == 1 else BATCH_SHARE
        answer = await self._call(requests, budget, share)
        if isinstance(answer, list):
            return answer
        if len(requests) == 1:
            return [Outcome(problem=answer)]
        log.warning(
            "reward %s: a batch of %d samples failed as a whole (it %s); scoring them one by one",
            self._name,
            len(requests),
            answer.text,
        )
        return await self._score_one_by_one(requests, answer, budget, stop_at_problem)

    async def _score_one_by_one(
        self,
        requests: Sequence[RewardRequest],
        batch: Problem,
        budget: _Budget,
        stop_at_problem: bool,
    ) -> list[Outcome]:
        """Score each sample by itself, after the call with all of them failed for the reason ``batch``."""
        outcomes: list[Outcome] = []
        for index, request in enumerate(requests):
            found = bool(outcomes) and outcomes[-1].problem is not None
            if budget.spent or (stop_at_problem and found):
                break
            share = 1.0 if index == len(requests) - 1 else SAMPLE_SHARE
            answer = await self._call([request], budget, share)
            if isinstance(answer, Problem) and answer.kind is ProblemKind.TIMED_OUT:
                text = f"{answer.text}, alone, after its batch {batch.text}"
                answer = replace(answer, text=text)
            outcomes += answer if isinstance(answer, list) else [Outcome(problem=answer)]
        reason = budget.spent or "an earlier sample failed too"
        text = f"was not asked again: its batch {batch.text}, and {reason}"
        problem = Problem(kind=ProblemKind.NOT_REACHED, text=text)
        return outcomes + [Outcome(problem=problem)] * (len(requests) - len(outcomes))

    async def _call(
        self, requests: Sequence[RewardRequest], budget: _Budget, share: float
    ) -> list[Outcome] | Problem:
        if not self._worker.alive:
            await self._restart()
        started = time.monotonic()
        answer = await self._worker.score(requests, share * budget.left_s)
        budget.left_s -= time.monotonic() - started
        if not self._worker.alive:
            budget.num_ended += 1
        return answer

    async def _restart(self) -> None:
        if self._closed:
            raise RewardError(f"reward {self._name} is closed")
        await self.start()

    def _bounded(self, outcome: Outcome) -> Outcome:
        if outcome.reward is None or abs(outcome.reward * self.options.weight) <= MAX_REWARD:
            return outcome
        text = f"returned {outcome.reward:g}; expected at most {MAX_REWARD:g} after its weight (rewards are float32)"
        problem = Problem(kind=ProblemKind.RETURNED, text=text)
        return replace(outcome, reward=None, problem=problem)


class _Budget:
    """What is left for one batch."""

    def __init__(self, timeout_s: float) -> None:
        self.left_s = timeout_s
        self.num_ended = 0

    @property
    def spent(self) -> str | None:
        """Why no more calls may be made, if so."""
        if self.left_s <= 0:
            return "then the time was used up"
        if self.num_ended >= MAX_ENDED:
            return f"then {MAX_ENDED} processes had ended"
        return None
