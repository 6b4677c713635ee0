"""A program of another ecosystem, such as a server, under the keeper: it ends with this process, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from .kept import STOP_LIMIT_S, end_kept, keeper_command
from .variables import worker_variables

_TAIL_LINES = 20
_LONGEST_LINE = 500


class GuardedProgram:
    """A running program, from its making until ``stop`` or the end of this process.

    What it prints is read, so that it never waits for a reader, and its last lines are kept. It needs no event loop.

    Args:
        folder: where it runs; None: where this process does.
        variables: its environment; None: what ``variables.worker_variables`` lets through of this process's.
        descriptor: an open file that it inherits under the same number, such as a listening socket.

    Raises:
        OSError: this process cannot start another one.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
        descriptor: int | None = None,
    ) -> None:
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        # The keeper hands a descriptor on in any case; the end of a pipe that nobody reads says nothing.
        spare = os.open(os.devnull, os.O_RDONLY) if descriptor is None else descriptor
        try:
            self._process = subprocess.Popen(
                keeper_command(command, str(spare)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(spare,),
                start_new_session=True,
                cwd=folder,
                env=dict(variables) if variables is not None else worker_variables(),
            )
        finally:
            if descriptor is None:
                os.close(spare)
        self._reading = threading.Thread(target=self._read, daemon=True, name="output of a program")
        self._reading.start()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines that it printed, on both of its outputs."""
        if not self.alive:
            self._reading.join(STOP_LIMIT_S)  # What it said at its end is still on its way.
        return tuple(self._tail)

    def stop(self) -> None:
        """Kill it and everything that it started, and wait until they are gone."""
        end_kept(self._process)
        self._reading.join(STOP_LIMIT_S)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as output:
            # A line without an end is read in pieces, so that memory stays bounded.
            while line := output.readline(2**16):
                text = line.decode(errors="replace").rstrip()
                if text:
                    self._tail.append(text[:_LONGEST_LINE])
