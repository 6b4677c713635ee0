"""The reaper: a small process that outlives a killed driver, ends what Ray leaves running, and removes its folder.

Ray's servers die with the driver that started them. The node's two agents notice the death at once, but then try for 60
seconds to report it to a server that is gone. Ray has no option for this time. And nobody removes its folder.

This file is also the reaper's program, ``python -I -S reaper.py PARENT FOLDER``, so it imports the standard library
only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

POLL_S = 0.5
"""Seconds between two looks at processes."""
GRACE_S = 5.0
"""Seconds for Ray's processes to end by themselves."""


def start_reaper(parent: int, folder: Path) -> subprocess.Popen[bytes] | None:
    """Start a reaper, and return its process; None where there is no ``/proc``.

    Once process ``parent`` is gone, the reaper ends the processes that work with the folder, and removes it.
    """
    if not Path("/proc/self").exists():
        return None
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(parent), str(folder)],
        stdin=subprocess.DEVNULL,
        # A terminal's Ctrl-C is meant for the driver, which ends the reaper itself when it closes.
        start_new_session=True,
    )


def processes_of(folder: Path) -> Iterator[int]:
    """Yield the ids of running processes that name the folder, or have a file in it open, this process apart.

    Some of Ray's processes write titles over their command lines.
    """
    named = os.fsencode(folder)
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone by now
            opened = (os.readlink(os.fsencode(file)) for file in (entry / "fd").iterdir())
            words = (entry / "cmdline").read_bytes()
            if int(entry.name) != os.getpid() and (
                named in words or any(named in o for o in opened)
            ):
                yield int(entry.name)


def main(arguments: list[str]) -> None:
    """Wait until the parent is gone, then end what works with the folder, and remove it."""
    parent, folder = int(arguments[0]), Path(arguments[1])
    while os.getppid() == parent:
        time.sleep(POLL_S)
    patience = time.monotonic() + GRACE_S
    while left := list(processes_of(folder)):
        if time.monotonic() > patience:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
