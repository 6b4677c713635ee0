"""The reaper: a small process that outlives a killed driver, ends what Ray leaves running, and removes its folder.

Ray's servers die with the driver that started them. The node's two agents notice the death at once, but then try for 60
seconds to report it to a server that is gone. Ray has no option for this time. And nobody removes its folder.

A worker whose raylet is killed ends at once, and leaves its own children and its shared memory. Who had a segment of
shared memory can be seen only while they live, so the reaper notes the segments from time to time. Python's resource
trackers know the segments made since: they remove them once all processes that could have them have ended, so they
are the last that the reaper kills.

This file is also the reaper's program, ``python -I -S reaper.py PARENT FOLDER SECONDS``, so it imports the standard
library only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

POLL_S = 0.5
"""Seconds between two looks at processes."""
LOOK_S = 5.0
"""Seconds between two looks at shared memory, where no new segment is there."""
GRACE_S = 5.0
"""Seconds for Ray's processes to end by themselves, once the driver is gone."""
SHARED = "/dev/shm/"
TRACKER = b"multiprocessing.resource_tracker"
"""Words in the command line of Python's resource trackers."""
WORKERS_VARIABLE = b"RAY_RAYLET_PID="
"""Variable that Ray gives its workers, and that their children inherit."""


def start_reaper(
    parent: int, folder: Path, look_s: float = LOOK_S
) -> subprocess.Popen[bytes] | None:
    """Start a reaper, and return its process; None where there is no ``/proc``.

    Once process ``parent`` is gone, the reaper ends the processes that work with the folder, and removes it and the
    shared memory that they had. At SIGTERM it does so at once, leaves the folder, and ends.

    Args:
        look_s: seconds between two looks at shared memory.
    """
    if not Path("/proc/self").exists():
        return None
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(parent), str(folder), str(look_s)],
        stdin=subprocess.DEVNULL,
        # A terminal's Ctrl-C is meant for the driver, which ends the reaper itself when it closes.
        start_new_session=True,
    )


def processes_of(folder: Path) -> Iterator[int]:
    """Yield the ids of running processes that name the folder or have a file in it open, and of the children of Ray's
    workers, by their environment; this process apart.

    Some of Ray's processes write titles over their command lines.
    """
    named = os.fsencode(folder)
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone by now
            opened = (os.readlink(os.fsencode(file)) for file in (entry / "fd").iterdir())
            if int(entry.name) != os.getpid() and (
                named in (entry / "cmdline").read_bytes()
                or any(named in one for one in opened)
                or _is_of_a_worker((entry / "environ").read_bytes(), named)
            ):
                yield int(entry.name)


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes, as far as they are still there and belong to this user."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _is_tracker(pid: int) -> bool:
    """Return whether a process is one of Python's resource trackers."""
    try:
        return TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return False


def _is_of_a_worker(environment: bytes, folder: bytes) -> bool:
    """Return whether an environment is that of a worker of this cluster: the driver's own children have the folder in
    theirs too, and no raylet."""
    return WORKERS_VARIABLE in environment and folder in environment


def shared_memory(pid: int) -> set[str]:
    """Return the segments of shared memory, as paths, that a process has mapped; empty: it has ended."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    paths = (line.split(maxsplit=5)[-1] for line in lines if SHARED in line)
    return {path for path in paths if path.startswith(SHARED) and not path.endswith("(deleted)")}


def _segments_there() -> set[str]:
    """Return the names of all segments of shared memory of this machine."""
    with suppress(OSError):
        return set(os.listdir(SHARED))
    return set()


class _Reaper:
    """The program: it waits for the driver's end, or for SIGTERM.

    Args:
        parent: the driver.
        look_s: seconds between two looks at shared memory.
    """

    def __init__(self, parent: int, folder: Path, look_s: float) -> None:
        self._parent, self._folder, self._look_s = parent, folder, look_s
        self._is_asked = False
        self._segments: set[str] = set()

    def ask(self, *_: object) -> None:
        """Have the processes ended now."""
        self._is_asked = True

    def run(self) -> None:
        """Wait, then end what works with the folder, and remove what it leaves."""
        look = 0.0
        before = there = _segments_there()
        while os.getppid() == self._parent and not self._is_asked:
            # A worker may be killed just after it has made one. Two looks: others map it a little later.
            known, before, there = before, there, _segments_there()
            if time.monotonic() >= look or there - known:
                self._note()
                look = time.monotonic() + self._look_s
            time.sleep(POLL_S)
        self._end(time.monotonic() + (0.0 if self._is_asked else GRACE_S))
        self._remove_segments()
        if not self._is_asked:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, patience: float) -> None:
        """Wait for the processes of the folder, and kill those that are there after ``patience``; trackers only where
        they outlive all others for long."""
        while left := self._note():
            others = [pid for pid in left if not _is_tracker(pid)]
            now = time.monotonic()
            if others and now > patience:
                kill_all(others)
            elif not others and now > patience + GRACE_S:
                kill_all(left)
            if others:
                patience = max(patience, now)
            time.sleep(POLL_S)

    def _note(self) -> list[int]:
        """Return the processes of the folder, and keep in mind what memory they share; the driver is none of them."""
        found = [pid for pid in processes_of(self._folder) if pid != self._parent]
        for pid in found:
            self._segments |= shared_memory(pid)
        return found

    def _remove_segments(self) -> None:
        """Remove the segments that nobody has any more."""
        living = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
        used = set().union(*(shared_memory(pid) for pid in living))
        for path in self._segments - used:
            with suppress(OSError):
                os.unlink(path)


def main(arguments: list[str]) -> None:
    """Run the reaper of a parent and a folder."""
    reaper = _Reaper(int(arguments[0]), Path(arguments[1]), float(arguments[2]))
    signal.signal(signal.SIGTERM, reaper.ask)
    reaper.run()


if __name__ == "__main__":
    main(sys.argv[1:])
