"""A small process that outlives a killed driver by a second, to end what Ray would leave running for a minute.

Ray's servers die with the driver that started them. The two agents of the node notice at once, but then try for 60
seconds to report it to a server that is gone, and Ray has no option for that.

This file is also the program: ``python -I -S reaper.py PARENT PID:START ...``. It imports the standard library alone.
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


class Entry(NamedTuple):
    """What Linux tells of a process."""

    pid: int
    parent: int
    group: int
    start: int
    """In ticks since the machine started; with ``pid`` it names a process for good."""


def start_reaper(parent: int) -> subprocess.Popen[bytes] | None:
    """Watch this process, and end the agents of the Ray node that it has started if it is gone.

    None where there is no ``/proc``, or no agent.
    """
    agents = agents_of(parent)
    if not agents:
        return None
    words = [f"{agent.pid}:{agent.start}" for agent in agents]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(parent), *words],
        stdin=subprocess.DEVNULL,
        # A terminal's Ctrl-C is for the driver, which ends this process when it ends.
        start_new_session=True,
    )


def agents_of(parent: int) -> list[Entry]:
    """Children, in the same process group, of the ``raylet`` that ``parent`` has started."""
    entries = [_entry(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    found = [entry for entry in entries if entry is not None]
    raylets = {entry.pid: entry for entry in found if entry.parent == parent and _is_raylet(entry)}
    # Workers are in groups of their own, and end by themselves.
    return [
        entry
        for entry in found
        if entry.parent in raylets and entry.group == raylets[entry.parent].group
    ]


def main(arguments: list[str]) -> None:
    """Wait until the parent is gone, then end the given processes, unless others have their numbers."""
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
    """None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name, in parentheses, may contain spaces and parentheses.
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
