"""Worker process of a reward, seen from the run: its start, and calls with a deadline."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rlhf_config.resolved import Selection
from rlhf_core.contracts.reward import RewardRequest
from rlhf_core.problem import Problem, ProblemKind

from ..processes.guarded import GuardedProcess
from ..processes.variables import with_hint, worker_variables
from . import wire
from .outcome import RewardOutcome

MAX_ANSWER_BYTES = 64 * 2**20
"""Largest number of bytes of an answer. Usual answers have a few dozen bytes a sample; a longer answer counts as a dead
worker."""
SAMPLES_AT_ONCE = 32
"""Number of samples in one line of a call: the worker reads a line while the next one is written."""


class WorkerProcess:
    """Worker process of one reward. After ``stop`` the worker can be started again."""

    def __init__(self, selection: Selection, name: str) -> None:
        ref = selection.ref("rlhf_rewards")
        self._reference = {"kind": ref.kind, "name": ref.name, "options": dict(ref.options)}
        self._process = GuardedProcess(f"reward {name}", max_line_bytes=MAX_ANSWER_BYTES)
        named = selection.reward.pass_env if selection.reward is not None else ()
        self._variables = worker_variables((*named, *selection.options.variables_read()))
        self._call = 0

    @property
    def alive(self) -> bool:
        """Whether the process runs: True from ``start`` to the end of the process."""
        return self._process.alive

    async def start(self, limit_s: float) -> Problem | None:
        """Start the process and build the reward in it; return the problem if that failed."""
        command = [sys.executable, "-P", "-m", "rlhf_guard.rewards.worker"]
        await self._process.start(command, environment=self._variables)
        line = wire.line({"path": sys.path, "reward": self._reference})
        answer = await self._exchange([line], 0, 0, limit_s)
        if isinstance(answer, Problem):
            await self.stop()
            return with_hint(answer, self._variables)
        return None

    async def score(
        self, requests: Sequence[RewardRequest], limit_s: float
    ) -> list[RewardOutcome] | Problem:
        """Return the reward's answer. A worker that timed out or died has been stopped."""
        self._call += 1
        self._process.log_again()
        lines = wire.request_lines(self._call, requests, SAMPLES_AT_ONCE)
        answer = await self._exchange(lines, self._call, len(requests), limit_s)
        if isinstance(answer, Problem) and answer.kind in (ProblemKind.TIMED_OUT, ProblemKind.DIED):
            await self.stop()
        if isinstance(answer, Problem):
            return with_hint(answer, self._variables)
        return [self._explained(outcome) for outcome in answer]

    async def stop(self) -> None:
        """Kill the process and all its descendants, and wait until they are gone."""
        await self._process.stop()

    def _explained(self, outcome: RewardOutcome) -> RewardOutcome:
        if outcome.problem is None:
            return outcome
        return replace(outcome, problem=with_hint(outcome.problem, self._variables))

    async def _exchange(
        self, lines: Iterable[bytes], call: int, count: int, limit_s: float
    ) -> list[RewardOutcome] | Problem:
        try:
            async with asyncio.timeout(limit_s):
                for line in lines:  # What fails while a line is made is no fault of the process.
                    await self._write(line)
                return await self._read_answer(call, count)
        except TimeoutError:
            return Problem(
                kind=ProblemKind.TIMED_OUT,
                text=f"did not finish within {limit_s:.3g} s and was stopped",
            )
        except _BrokenLineError as error:
            return await self._process.death(error.cause)

    async def _write(self, line: bytes) -> None:
        writer = self._process.writer
        assert writer is not None
        try:
            writer.write(line)
            await writer.drain()
        except OSError as error:
            raise _BrokenLineError(error) from error

    async def _read_answer(self, call: int, count: int) -> list[RewardOutcome] | Problem:
        reader = self._process.reader
        assert reader is not None
        try:
            answer = await reader.readline()
            if not answer.endswith(b"\n"):
                raise EOFError
            return wire.answer_of(answer, call, count)
        except (OSError, EOFError, ValueError) as error:
            raise _BrokenLineError(error) from error


class _BrokenLineError(Exception):
    """The line to the process broke, or what came over it is no answer."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause
