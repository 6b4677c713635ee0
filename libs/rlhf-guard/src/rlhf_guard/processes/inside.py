"""First acts of a process that runs the code of users, which the keeper starts with a socket as its line to the run."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from contextlib import suppress
from functools import partial

from .keeper import PR_SET_PDEATHSIG, SIGKILL, SIGNALS_TO_A_JOB, prctl


def settle(descriptor: int) -> socket.socket:
    """Make this process one that ends before the run does, and return its line to the run.

    Standard output is not part of the protocol, so user code may print.
    """
    prctl(PR_SET_PDEATHSIG, SIGKILL)
    _volunteer_for_the_oom_killer()
    _outlast_signals_to_the_job()
    faulthandler.enable()
    # User code may print lone surrogates, and its last line must be flushed if the process dies.
    sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def end_forked_child(owner: int) -> None:
    """End this process if it is not ``owner``: user code forked, and the child came back to where the run is answered.
    Only the parent may answer."""
    if os.getpid() != owner:
        os._exit(0)


def _outlast_signals_to_the_job() -> None:
    """Ignore what a scheduler sends to every process of a job: the run decides when to end."""
    for number in SIGNALS_TO_A_JOB:
        signal.signal(number, lambda *_: None)
        # Children of user code end by these signals as usual; those started by exec lose the handler anyway.
        os.register_at_fork(after_in_child=partial(signal.signal, number, signal.SIG_DFL))


def _volunteer_for_the_oom_killer() -> None:
    # When memory runs out, the kernel should end the user's code, which can be started again, and not the training.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
