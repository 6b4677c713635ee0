"""Host of one reward: it returns one outcome per sample of a batch, even if the reward hangs, crashes or raises.

When a batch fails as a whole, the host scores its samples again one by one, so that only guilty samples lack a score.
All calls share the reward's ``timeout_s``. The start of a new process, about half a second, does not count.

- The call with the whole batch may take three quarters of the time; with a batch of one sample, all of the time.
- Then each single sample may take a quarter of the remaining time, and the last sample all of it.
- A sample has no score if the time is used up, or ``MAX_ENDED`` processes have ended, before its turn.

A reward that needs objects in the run's memory works in a thread of the run's own process. The thread's interface is
that of a worker process, with two differences that it cannot avoid. A call that hangs is abandoned and not killed, so
its thread goes on until the process ends. ``os._exit`` or a crash ends the run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rlhf_config.resolved import Selection
from rlhf_core.capabilities import CREDITS_TOKENS
from rlhf_core.contracts.reward import Reward, RewardRequest
from rlhf_core.errors import RewardError
from rlhf_core.problem import Problem, ProblemKind, problem_of

from ..processes.marked_json import copied
from .checking import require_score, score_checked
from .outcome import RewardOutcome
from .process import WorkerProcess

BATCH_SHARE = 0.75
"""Share of ``timeout_s`` for the first call with the whole batch."""
SAMPLE_SHARE = 0.25
"""Share of the remaining time for a sample that is not the last; eight samples that hang leave a tenth of the time."""
MAX_ENDED = 16
"""Largest number of processes that one batch may end."""
MIN_START_LIMIT_S = 120.0
"""Smallest time limit for the start of a reward whose options name none, in seconds: it may load a model."""
MAX_REWARD = 1e35
"""Largest size of a weighted score. Scores are float32 (up to 3.4e38) and are added up."""
_STOP_LIMIT_S = 0.2

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)


class RewardHost:
    """Host of one reward, which runs in a separate process, or in a thread if its options say ``isolate = false``."""

    def __init__(self, selection: Selection) -> None:
        assert selection.reward is not None
        self.selection = selection
        self.options = selection.reward
        self._name = selection.name
        kind = WorkerProcess if self.options.isolate else WorkerThread
        self._worker: WorkerProcess | WorkerThread = kind(selection, self._name)
        # Batches come one at a time. In the worker they would wait for each other while their deadlines run.
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def name(self) -> str:
        """Name of the reward in metrics: the last word of its section."""
        return self._name

    async def start(self) -> None:
        """Start the worker and build the reward in it, so that a wrong file is found before a model is loaded.

        Raises:
            RewardError: the reward cannot be built; the message has the lines of the user's code.
        """
        limit_s = self.options.start_timeout_s or max(MIN_START_LIMIT_S, self.options.timeout_s)
        problem = await self._worker.start(limit_s)
        if problem is not None:
            origin = self.selection.registered.origin
            if problem.kind is ProblemKind.TIMED_OUT:
                raise RewardError(
                    f"reward {self._name} ({origin}) did not start within {limit_s:g} s; raise "
                    f"--{self.selection.section}.start_timeout_s if it needs longer to load",
                    code="reward/not-started",
                )
            raise RewardError(
                f"reward {self._name} ({origin}) could not be built: it {problem.text}"
                + "".join(f"\n    {line}" for line in problem.where),
                code="reward/not-started",
            )

    async def score(
        self, requests: Sequence[RewardRequest], *, stop_at_problem: bool = False
    ) -> list[RewardOutcome]:
        """Return one outcome per request, in order, within ``timeout_s`` and the time of restarts.

        Args:
            stop_at_problem: end once the first guilty sample is known; later samples are not reached.

        Raises:
            RewardError: the host is closed, a row cannot be sent to the worker, or a new worker cannot be started.
        """
        async with self._turn:
            try:
                outcomes = await self._score(requests, stop_at_problem)
                if not (stop_at_problem or self._worker.alive):
                    # Restarted now, the worker starts while the policy trains, and not while the next batch waits.
                    await self._restart()
            except asyncio.CancelledError:
                # The worker still computes a batch whose outcome nobody reads any more.
                await self._worker.stop()
                raise
        return [
            self._bounded(self._placed(outcome, request))
            for request, outcome in zip(requests, outcomes, strict=True)
        ]

    async def close(self) -> None:
        """Stop the worker and all processes that it started, also in the middle of a batch."""
        self._closed = True
        await self._worker.stop()
        async with self._turn:
            await self._worker.stop()

    async def _score(
        self, requests: Sequence[RewardRequest], stop_at_problem: bool
    ) -> list[RewardOutcome]:
        budget = _Budget(self.options.timeout_s)
        share = 1.0 if len(requests) == 1 else BATCH_SHARE
        answer = await self._call(requests, budget, share)
        if isinstance(answer, list):
            return answer
        if len(requests) == 1:
            return [RewardOutcome(problem=answer)]
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
    ) -> list[RewardOutcome]:
        """Return the outcomes of samples that are scored one by one, after the whole batch failed with ``batch``."""
        outcomes: list[RewardOutcome] = []
        for index, request in enumerate(requests):
            found = bool(outcomes) and outcomes[-1].problem is not None
            if budget.spent or (stop_at_problem and found):
                break
            share = 1.0 if index == len(requests) - 1 else SAMPLE_SHARE
            answer = await self._call([request], budget, share)
            if isinstance(answer, Problem) and answer.kind is ProblemKind.TIMED_OUT:
                text = f"{answer.text}, alone, after its batch {batch.text}"
                answer = replace(answer, text=text)
            outcomes += answer if isinstance(answer, list) else [RewardOutcome(problem=answer)]
        reason = budget.spent or "an earlier sample failed too"
        text = f"was not asked again: its batch {batch.text}, and {reason}"
        problem = Problem(kind=ProblemKind.NOT_REACHED, text=text)
        return outcomes + [RewardOutcome(problem=problem)] * (len(requests) - len(outcomes))

    async def _call(
        self, requests: Sequence[RewardRequest], budget: _Budget, share: float
    ) -> list[RewardOutcome] | Problem:
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
            raise RewardError(f"reward {self._name} is closed", code="reward/closed")
        await self.start()

    def _placed(self, outcome: RewardOutcome, request: RewardRequest) -> RewardOutcome:
        """Return the outcome if its parts stand on the sample's actions and the reward has declared that it gives some.

        Checked here and not in the worker, which runs the user's code.
        """
        if not outcome.step_rewards:
            return outcome
        if CREDITS_TOKENS not in self.selection.needs:
            return _returned(
                outcome,
                "returned step_rewards, which it has not declared, so nothing checked that the estimator reads them; "
                f"expected a component that needs {CREDITS_TOKENS!r}. Set its option step_rewards, if it has one",
            )
        num_actions = sum(request.action_mask)
        for action, _ in outcome.step_rewards:
            if not 0 <= action < num_actions:
                return _returned(
                    outcome,
                    f"returned a step reward at action {action}; the sample has {num_actions} action tokens, counted "
                    "from 0 without prompt and environment text",
                )
        return outcome

    def _bounded(self, outcome: RewardOutcome) -> RewardOutcome:
        if outcome.reward is None:
            return outcome
        parts = (outcome.reward, *(part for _, part in outcome.step_rewards))
        largest = max(parts, key=abs)
        if abs(largest * self.options.weight) <= MAX_REWARD:
            return outcome
        return _returned(
            outcome,
            f"returned {largest:g}; expected at most {MAX_REWARD:g} after its weight (rewards are float32)",
        )


def _returned(outcome: RewardOutcome, text: str) -> RewardOutcome:
    """Return the outcome as one that was refused, without its score."""
    problem = Problem(kind=ProblemKind.RETURNED, text=text)
    return replace(outcome, reward=None, step_rewards=(), problem=problem)


class _Budget:
    """Remaining time and number of ended processes of one batch."""

    def __init__(self, timeout_s: float) -> None:
        self.left_s = timeout_s
        self.num_ended = 0

    @property
    def spent(self) -> str | None:
        """Reason why the batch may make no more calls, in words that follow the batch's problem; None if it may."""
        if self.left_s <= 0:
            return "then the time was used up"
        if self.num_ended >= MAX_ENDED:
            return f"then {MAX_ENDED} processes had ended"
        return None


class WorkerThread:
    """Worker thread with a separate event loop, so that a blocking reward does not block generation."""

    def __init__(self, selection: Selection, name: str) -> None:
        self._selection = selection
        self._name = name
        self._reward: Reward | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether the reward is built: True between a successful ``start`` and ``stop``."""
        return self._reward is not None

    async def start(self, limit_s: float) -> Problem | None:
        """Build the reward in its thread; return the problem if that failed."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_serve, args=(self._loop,), name=f"reward {self._name}", daemon=True
        )
        self._thread.start()
        built = await self._within(limit_s, self._build())
        if isinstance(built, Problem):
            await self.stop()
            return built
        return None

    async def score(
        self, requests: Sequence[RewardRequest], limit_s: float
    ) -> list[RewardOutcome] | Problem:
        """Return the reward's answer. A thread that did not answer in time has been abandoned."""
        assert self._reward is not None
        copies = [replace(request, row=copied(request.row)) for request in requests]
        answer = await self._within(limit_s, score_checked(self._reward, copies))
        if isinstance(answer, Problem) and answer.kind is ProblemKind.TIMED_OUT:
            await self.stop()
        return answer

    async def stop(self) -> None:
        """End the thread if it is idle, else leave it behind."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = self._reward = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join, _STOP_LIMIT_S)
        if thread.is_alive():
            log.warning(
                "reward %s still runs in an abandoned thread, which isolate = false cannot stop",
                self._name,
            )

    async def _build(self) -> Problem | None:
        try:
            self._reward = require_score(self._selection.build())
        except BaseException as error:  # sys.exit() in a user's file is an error of that file
            return problem_of(error)
        return None

    async def _within(
        self, limit_s: float, work: Coroutine[Any, Any, ResultT]
    ) -> ResultT | Problem:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), limit_s)
        except TimeoutError:
            return Problem(
                kind=ProblemKind.TIMED_OUT,
                text=f"did not finish within {limit_s:.3g} s and was abandoned",
            )


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        _run_until_stopped(loop)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            # asyncio raises these out of the loop when a user's task raises them. The caller that awaits the task gets
            # the exception too, and reports it.
            continue
