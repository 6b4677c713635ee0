"""Keeper: a tiny process between a run and a process of user code, so that no such process outlives the run.

``python -I -S keeper.py PARENT_PID FD COMMAND...`` runs the command with the descriptor and waits until the command
ends, standard input closes or the parent is gone. Then the keeper kills every descendant and exits with the command's
code (128 + signal if a signal ended the command, 127 if it cannot be started). In place of FD, ``IN:OUT:FOLDER`` are
the descriptors of the command's standard input and output, and the folder in which it runs and which goes with it. As
Linux's "child subreaper" the keeper also gets the processes that detached themselves. The keeper runs no user code, so
it cannot hang, and it imports only the standard library, so it starts in 20 ms.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SIGKILL = int(signal.SIGKILL)
SIGNALS_TO_A_JOB = (
    *(signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),  # rlhf_core.signals.SCHEDULER_WARNINGS
)

_SWEEP_LIMIT_S = 2.0
_STDIN = 0
_STDERR = 2
_NOT_STARTED = 127
"""Exit code for a command that cannot be started, as shells have it."""


def prctl(option: int, value: int) -> None:
    """Set a process attribute on Linux; do nothing elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main(parent: int, given: str, command: list[str]) -> int:
    """Run the command under guard and return its exit code."""
    passed, _, rest = given.partition(":")
    output, _, folder = rest.partition(":")
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    awake = _wake_on(signal.SIGCHLD, signal.SIGINT, *SIGNALS_TO_A_JOB)
    try:
        worker = subprocess.Popen(
            command,
            stdin=int(passed) if output else subprocess.DEVNULL,
            stdout=int(output) if output else _STDERR,
            pass_fds=() if output else (int(passed),),
            cwd=folder or None,
            process_group=0,  # One of the worker's own: a signal to it does not hit the keeper.
        )
    except (OSError, ValueError) as error:
        print(f"cannot be started: {error}", file=sys.stderr)
        return _NOT_STARTED
    for descriptor in (passed, output) if output else (passed,):
        os.close(int(descriptor))
    status = None
    while status is None and os.getppid() == parent:
        readable, _, _ = select.select([_STDIN, awake], [], [])
        if awake in readable:
            os.read(awake, 4096)
        if _STDIN in readable and not os.read(_STDIN, 1):
            break
        status = dict(_reaped()).get(worker.pid)
    _kill_descendants(worker.pid)
    if folder:
        _remove(folder)
    code = os.waitstatus_to_exitcode(status) if status is not None else 0
    return code if code >= 0 else 128 - code


def _wake_on(*signals: signal.Signals) -> int:
    """Return a descriptor that becomes readable when one of the signals arrives."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in signals:
        # A handler and not SIG_IGN, which the worker would inherit.
        signal.signal(number, lambda *_: None)
    return reader


def _reaped() -> Iterator[tuple[int, int]]:
    """Yield (pid, status) of the children that have ended."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _kill_descendants(process_group: int) -> None:
    """Kill the worker's process group, and processes that have left it, until no descendant is left."""
    give_up = time.monotonic() + _SWEEP_LIMIT_S
    while time.monotonic() < give_up:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process_group, SIGKILL)
        for child in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _remove(folder: str) -> None:
    import shutil  # Most commands have no folder, and start sooner without.

    shutil.rmtree(folder, ignore_errors=True)


def _children() -> Iterator[int]:
    """Yield the ids of this process's children, adopted orphans included."""
    me = os.getpid()
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The format is "pid (name) state ppid ...", where the name may hold parentheses.
                if int(file.read().rpartition(b")")[2].split()[1]) == me:
                    yield int(name)


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
