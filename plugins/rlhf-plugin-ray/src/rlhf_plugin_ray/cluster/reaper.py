"""The reaper: a small process that outlives a killed driver by a second, and ends the agents that Ray leaves running.

Ray's servers die with the driver that started them. The node's two agents notice the death at once, but then try for 60
seconds to report it to a server that is gone. Ray has no option for this time.

This file is also the reaper's program, ``python -I -S reaper.py PARENT PID:START ...``, so it imports the standard
library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

POLL_S = 0.5
"""Seconds between two looks at the driver's process."""


class Entry(NamedTuple):
    """One process in Linux's table of processes."""

    pid: int
    parent: int
    """Pid of the parent process."""
    group: int
    """Number of the process group."""
    start: int
    """Start time in ticks since the machine started. ``pid`` and ``start`` together name one process only."""


def start_reaper(parent: int) -> subprocess.Popen[bytes] | None:
    """Start a reaper, and return its process; None where there is no ``/proc``, or no agent.

    Once process ``parent`` is gone, the reaper ends the agents of the Ray node that ``parent`` has started.
    """
    agents = agents_of(parent)
    if not agents:
        return None
    words = [f"{agent.pid}:{agent.start}" for agent in agents]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(parent), *words],
        stdin=subprocess.DEVNULL,
        # A terminal's Ctrl-C is meant for the driver, which ends the reaper itself when it closes.
        start_new_session=True,
    )


def agents_of(parent: int) -> list[Entry]:
    """Return the children of the ``raylet`` that ``parent`` has started, if they are in the raylet's process group."""
    entries = [_entry(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    found = [entry for entry in entries if entry is not None]
    raylets = {entry.pid: entry for entry in found if entry.parent == parent and _is_raylet(entry)}
    # Ray's workers are in process groups of their own, and end by themselves.
    return [
        entry
        for entry in found
        if entry.parent in raylets and entry.group == raylets[entry.parent].group
    ]


def main(arguments: list[str]) -> None:
    """Wait until the parent is gone, then end the given processes. A pid that another process has by now is left."""
    parent = int(arguments[0])
    while os.getppid() == parent:
        time.sleep(POLL_S)
    for word in arguments[1:]:
        pid, start = map(int, word.split(":"))
        entry = _entry(pid)
        if entry is not None and entry.start == start:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _entry(pid: int) -> Entry | None:
    """Return the entry of a process; None if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field, the program's name in parentheses, may itself contain spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return Entry(pid, int(fields[1]), int(fields[2]), int(fields[19]))


def _is_raylet(entry: Entry) -> bool:
    try:
        program = Path(f"/proc/{entry.pid}/cmdline").read_bytes().partition(b"\0")[0]
    except OSError:
        return False
    return os.path.basename(program) == b"raylet"


if __name__ == "__main__":
    main(sys.argv[1:])
