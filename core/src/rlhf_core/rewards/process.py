"""Worker process of a reward, seen from the run: its start, calls with a deadline, and its end with all descendants."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..config.resolved import Selection
from ..contracts.reward import RewardRequest
from . import keeper, wire
from .outcome import Problem, ProblemKind, RewardOutcome

MAX_ANSWER_BYTES = 64 * 2**20
"""Largest number of bytes of an answer. Usual answers have a few dozen bytes a sample; a longer answer counts as a dead
worker."""
MAX_LOGGED_BYTES = 64 * 2**10
"""Largest number of printed bytes of user code that are logged for one call."""

_STOP_LIMIT_S = 3.0
_DEATH_LIMIT_S = 3.0
"""Time for the end of a worker that closed its connection. It is taken from the time of the samples beside the bad one,
where user code has closed the connection and the process goes on."""
_TAIL_LINES = 5

log = logging.getLogger(__name__)


class WorkerProcess:
    """Worker process of one reward. After ``stop`` the worker can be started again."""

    def __init__(self, selection: Selection, name: str) -> None:
        ref = selection.ref("rlhf_rewards")
        self._reference = {"kind": ref.kind, "name": ref.name, "options": dict(ref.options)}
        self._name = name
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._printing: asyncio.Task[None] | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._logged = 0
        self._call = 0

    @property
    def alive(self) -> bool:
        """Whether the process runs: True from ``start`` to the end of the process."""
        return self._process is not None and self._process.returncode is None

    async def start(self, limit_s: float) -> Problem | None:
        """Start the process and build the reward in it; return the problem if that failed."""
        await self._spawn()
        line = wire.encode({"path": sys.path, "reward": self._reference})
        answer = await self._exchange(line, 0, 0, limit_s)
        if isinstance(answer, Problem):
            await self.stop()
            return answer
        return None

    async def score(
        self, requests: Sequence[RewardRequest], limit_s: float
    ) -> list[RewardOutcome] | Problem:
        """Return the reward's answer. A worker that timed out or died has been stopped."""
        self._call += 1
        self._logged = 0
        line = wire.requests_line(self._call, requests)
        answer = await self._exchange(line, self._call, len(requests), limit_s)
        if isinstance(answer, Problem) and answer.kind in (ProblemKind.TIMED_OUT, ProblemKind.DIED):
            await self.stop()
        return answer

    async def stop(self) -> None:
        """Kill the process and all its descendants, and wait until they are gone."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # The keeper then kills all descendants.
        try:
            await asyncio.wait_for(process.wait(), _STOP_LIMIT_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
        if self._printing is not None:
            # A process that outlived the keeper's kill may still hold the pipe.
            _, unfinished = await asyncio.wait({self._printing}, timeout=0.5)
            for task in unfinished:
                task.cancel()
        self._reader = self._writer = self._printing = None

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        script = str(Path(keeper.__file__))
        with theirs:
            worker = [sys.executable, "-P", "-m", "rlhf_core.rewards.worker", str(theirs.fileno())]
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", script, str(os.getpid()), str(theirs.fileno())),
                *worker,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._reader, self._writer = await asyncio.open_connection(
            sock=ours, limit=MAX_ANSWER_BYTES
        )
        self._tail.clear()
        self._printing = asyncio.create_task(self._log_output(self._process))

    async def _exchange(
        self, line: bytes, call: int, count: int, limit_s: float
    ) -> list[RewardOutcome] | Problem:
        try:
            async with asyncio.timeout(limit_s):
                return wire.answer_of(await self._answer_to(line), call, count)
        except TimeoutError:
            return Problem(
                kind=ProblemKind.TIMED_OUT,
                text=f"did not finish within {limit_s:.3g} s and was stopped",
            )
        except (OSError, EOFError, ValueError) as error:
            return await self._death(error)

    async def _answer_to(self, line: bytes) -> bytes:
        assert self._reader is not None
        assert self._writer is not None
        self._writer.write(line)
        await self._writer.drain()
        answer = await self._reader.readline()
        if not answer.endswith(b"\n"):
            raise EOFError
        return answer

    async def _death(self, error: Exception) -> Problem:
        """Return the problem of a dead process: how the process ended, and the last lines that it printed."""
        if isinstance(error, ValueError):
            text = f"sent an answer that cannot be read ({error})"
            return Problem(kind=ProblemKind.DIED, text=text)
        process, printing = self._process, self._printing
        if process is None or printing is None:
            return Problem(kind=ProblemKind.DIED, text="was stopped, because the run ends")
        with suppress(TimeoutError):
            async with asyncio.timeout(_DEATH_LIMIT_S):
                await process.wait()
                await asyncio.shield(printing)
        return Problem(
            kind=ProblemKind.DIED,
            text=f"ended its process ({_how(process.returncode)})",
            where=tuple(f"printed: {line}" for line in self._tail),
        )

    async def _log_output(self, process: asyncio.subprocess.Process) -> None:
        """Read the output of user code, so that printing never blocks; log the first lines and keep the last."""
        assert process.stderr is not None
        rest = ""
        while chunk := await process.stderr.read(2**16):
            # Only the end of a large chunk can become the tail.
            lines = (rest + chunk[-4096:].decode(errors="replace")).split("\n")
            rest = lines.pop()[-500:]
            self._tail.extend(line[:500] for line in lines if line.strip())
            if self._logged < MAX_LOGGED_BYTES:
                log.info("reward %s: %s", self._name, chunk.decode(errors="replace").rstrip())
            elif self._logged - len(chunk) < MAX_LOGGED_BYTES:
                log.info("reward %s: prints more than is logged", self._name)
            self._logged += len(chunk)
        if rest.strip():
            self._tail.append(rest)


def _how(code: int | None) -> str:
    if code is None:
        return "it closed its connection"
    if code > 128 and code - 128 in {*signal.Signals}:
        return f"killed by {signal.Signals(code - 128).name}"
    return f"exit code {code}"
