"""The watchdog, which ends vLLM's processes when the engine's process is gone: vLLM's core does not notice this."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import threading
import time

from ..names import OWNER_VARIABLE, SOCKETS_VARIABLE
from .segments import remove_names

GRACE_S = 10.0
"""Seconds between asking the core to end and killing it."""


def end_with_owner() -> None:
    """Start a thread that ends vLLM's core when the owner is gone: the process whose pid the environment holds.

    Without an owner no thread is started. The core is this process or, if vLLM runs workers in processes of their own,
    its parent.
    """
    owner = int(os.environ.get(OWNER_VARIABLE, "0"))
    if not owner:
        return
    core = os.getpid() if os.getppid() == owner else os.getppid()
    try:
        handle = os.pidfd_open(owner)
    except (
        ProcessLookupError
    ):  # the owner is gone already, or is on another machine, where there is no such folder
        _remove_folder()
        return
    threading.Thread(target=_watch, args=(handle, core), name="rlhf-watchdog", daemon=True).start()


def _watch(handle: int, core: int) -> None:
    watched = select.poll()
    watched.register(handle, select.POLLIN)
    watched.poll()
    leave_nothing()
    with contextlib.suppress(ProcessLookupError):  # the core may end by itself
        os.kill(core, signal.SIGTERM)
        time.sleep(GRACE_S)
        os.kill(core, signal.SIGKILL)


def leave_nothing() -> None:
    """Remove what nobody else will: this process's shared memory, and the folder of the sockets.

    Python's tracker of shared memory is a process of the owner's, and may have died with it. Memory that is mapped
    stays until its process ends.
    """
    remove_names(of_groups_alone=False)
    _remove_folder()


def _remove_folder() -> None:
    if folder := os.environ.get(SOCKETS_VARIABLE):
        shutil.rmtree(folder, ignore_errors=True)
