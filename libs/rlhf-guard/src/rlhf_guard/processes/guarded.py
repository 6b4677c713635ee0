"""A guarded process, seen from the run: its start under the keeper, what it prints, its end with all descendants."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

from rlhf_core.problem import Problem, ProblemKind

from .kept import keeper_command

MAX_LOGGED_BYTES = 64 * 2**10
"""Largest number of printed bytes of user code that are logged until ``log_again``."""

_STOP_LIMIT_S = 3.0
_DEATH_LIMIT_S = 3.0
"""Time for the end of a process that closed its connection. It is taken from the time of the calls beside the bad one,
where user code has closed the connection and the process goes on."""
_TAIL_LINES = 5

log = logging.getLogger(__name__)


class GuardedProcess:
    """A process that runs the code of a user. After ``stop`` it can be started again.

    Args:
        label: what it is, for the log: "reward probe".
        max_line_bytes: largest line that ``reader.readline`` returns.
    """

    def __init__(self, label: str, *, max_line_bytes: int = 2**16) -> None:
        self._label = label
        self._max_line_bytes = max_line_bytes
        self._process: asyncio.subprocess.Process | None = None
        self._printing: asyncio.Task[None] | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._logged = 0
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    @property
    def alive(self) -> bool:
        """Whether the process runs: True from ``start`` to the end of the process."""
        return self._process is not None and self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """Exit code of the process, 128 + signal after one; None while it runs or is not started."""
        return self._process.returncode if self._process is not None else None

    async def start(self, command: Sequence[str], *, environment: Mapping[str, str]) -> None:
        """Start the command under guard, with the number of a socket's descriptor as its last argument.

        Args:
            environment: its variables, of ``variables.worker_variables``.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = str(theirs.fileno())
            self._process = await asyncio.create_subprocess_exec(
                *keeper_command([*command, descriptor], descriptor),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=environment,
            )
        self.reader, self.writer = await asyncio.open_connection(
            sock=ours, limit=self._max_line_bytes
        )
        self._tail.clear()
        self._printing = asyncio.create_task(self._log_output(self._process))

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
        if self.writer is not None:
            self.writer.close()
            with suppress(OSError):
                await self.writer.wait_closed()
        if self._printing is not None:
            # A process that outlived the keeper's kill may still hold the pipe.
            _, unfinished = await asyncio.wait({self._printing}, timeout=0.5)
            for task in unfinished:
                task.cancel()
        self.reader = self.writer = self._printing = None

    async def death(self, error: Exception) -> Problem:
        """Return the problem of a process whose line broke with ``error``: how it ended, and what it printed last."""
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

    def log_again(self) -> None:
        """Log what is printed from here on, even if earlier prints were too long."""
        self._logged = 0

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
                log.info("%s: %s", self._label, chunk.decode(errors="replace").rstrip())
            elif self._logged - len(chunk) < MAX_LOGGED_BYTES:
                log.info("%s: prints more than is logged", self._label)
            self._logged += len(chunk)
        if rest.strip():
            self._tail.append(rest)


def _how(code: int | None) -> str:
    if code is None:
        return "it closed its connection"
    if code > 128 and code - 128 in {*signal.Signals}:
        return f"killed by {signal.Signals(code - 128).name}"
    return f"exit code {code}"
