"""The process around a sandboxed program: it puts the guards up, starts the program, and kills all of it at its end.

It is started as the leader of a session of its own, in the temporary folder, without environment. Its input is the
program: a line with the number of bytes, then those. The input then stays open; its end means that whoever waits for
the program is gone or wants no more, and the program is killed. Its output is the program's output. Its last line of
stderr is a report in JSON.

    supervisor    outside of the namespaces; watches clock, input and number of processes
    first         number 1 of its namespace, if there is one: its end kills everything in it
    program       python -, with limits
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

from . import calls, files, namespaces
from .program import end_as, read_passed, set_limits
from .system import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    drop_capabilities,
    prctl,
)

FOLDER_PREFIX = "rlhf-sandbox-"
"""Beginning of the name of the temporary folder in which a program runs."""
_POLL_S = 0.05
_ORPHAN_S = 1.0


def main() -> None:
    """Run one program by the settings of the command line, and report how it ended."""
    waiting = os.getppid()
    settings = json.loads(sys.argv[1])
    program = _program(read_passed())
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    separate = namespaces.enter()
    guards = {
        "network": separate or calls.known(),
        "files": files.version() > 0,
        "processes": separate,
    }
    missing = [guard for guard in settings["require"] if not guards[guard]]
    if missing:
        _report({"missing": missing})
        return
    started = time.monotonic()
    first = os.fork()
    if not first:
        _first(settings, program, separate=separate)
    os.close(1)
    why = _watch(first, settings, started)
    status = _kill_all(first)
    if _is_orphan(waiting, patience=_ORPHAN_S if why == "unwanted" else 0.0):
        _remove_folder()
    _report({"why": why, "status": status, "seconds": time.monotonic() - started, "guards": guards})


def _is_orphan(parent: int, patience: float) -> bool:
    """Return whether the parent has ended. A killed process closes its files before its children have another parent,
    so the end of the input may come before that can be seen.

    Args:
        patience: seconds within which it may still be seen.
    """
    deadline = time.monotonic() + patience
    while os.getppid() == parent:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _remove_folder() -> None:
    """Remove the program's folder, which who waited for it does unless it was killed; never another one."""
    import shutil  # Most programs end by themselves, and start sooner without.

    folder = os.getcwd()
    if os.path.basename(folder).startswith(FOLDER_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def _program(code: bytes) -> int:
    """Return an open file with the code, which has no name."""
    descriptor = os.memfd_create("program")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(code)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _first(settings: dict[str, Any], program: int, *, separate: bool) -> NoReturn:
    """Start the program, take in every orphan, and end as the program does."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        most = settings["processes"]
        # The kernel counts processes of users (RLIMIT_NPROC), but never those of root.
        if most > 1 and not (separate and namespaces.bound_processes(most)) and not os.getuid():
            raise OSError(
                f"the number of root's processes cannot be bounded before Linux 6.14; processes is {most}: set it to "
                "1, or run as another user"
            )
        child = os.fork()
        if not child:
            _become_program(settings, program)
        os.close(1)
        end_as(child)
    except BaseException as error:
        _report({"broken": f"{type(error).__name__}: {error}"})
    os._exit(125)


def _become_program(settings: dict[str, Any], program: int) -> NoReturn:
    """Give up everything that the program must not have, and become it."""
    try:
        os.dup2(program, 0)
        errors = os.dup(2)
        os.dup2(1, 2)
        os.set_inheritable(errors, False)
        set_limits(settings["limits"])
        drop_capabilities()
        if files.version():
            here = os.getcwd()
            files.confine(
                [*files.SYSTEM, *files.DEVICES, *settings["readable"]], [here, "/dev/null"]
            )
        if calls.known():
            calls.refuse(processes=settings["processes"] == 1)
        os.execve(settings["command"][0], settings["command"], {"PYTHONHASHSEED": "0"})
    except BaseException as error:
        os.write(
            errors, json.dumps({"broken": f"{type(error).__name__}: {error}"}).encode() + b"\n"
        )
    os._exit(125)


def _watch(first: int, settings: dict[str, Any], started: float) -> str:
    """Wait for the program's end, and return what ended it: itself, the clock, who waits for it, too many processes."""
    waiting = select.poll()
    waiting.register(0, select.POLLIN | select.POLLHUP)
    deadline = started + settings["seconds"]
    exited = os.pidfd_open(first)
    waiting.register(exited, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return "clock"
        ready = dict(waiting.poll(1000 * min(left, _POLL_S)))
        if exited in ready:
            return "itself"
        if 0 in ready:
            return "unwanted"
        if settings["processes"] > 1 and len(_descendants()) - 1 > settings["processes"]:
            return "processes"


def _kill_all(first: int) -> int:
    """Kill every process below this one, and return the exit status of ``first``; negative: a signal ended it."""
    _kill(first)
    _, status = os.waitpid(first, 0)
    # Without a namespace orphans become children of this process, wherever they went.
    while True:
        for one in _descendants():
            _kill(one)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return os.waitstatus_to_exitcode(status)


def _descendants() -> list[int]:
    """Return the numbers of all processes below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(name))
    found, unread = [], [os.getpid()]
    while unread:
        below = children.get(unread.pop(), [])
        found += below
        unread += below
    return found


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def _report(report: dict[str, Any]) -> None:
    os.write(2, json.dumps(report).encode() + b"\n")
