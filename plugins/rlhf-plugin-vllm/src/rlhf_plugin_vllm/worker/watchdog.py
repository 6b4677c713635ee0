"""End vLLM's processes when the one that started them is gone. vLLM's core does not notice that by itself."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time

from ..names import OWNER_VARIABLE

GRACE_S = 10.0
"""From asking the core to end until killing it."""


def end_with_owner() -> None:
    """Watch the process whose id the environment holds, from a thread; do nothing where there is none.

    The core is this process itself, or its parent where vLLM gave workers processes of their own.
    """
    owner = int(os.environ.get(OWNER_VARIABLE, "0"))
    if not owner:
        return
    core = os.getpid() if os.getppid() == owner else os.getppid()
    try:
        handle = os.pidfd_open(owner)
    except ProcessLookupError:  # it is gone already, or lives on another machine
        return
    threading.Thread(target=_watch, args=(handle, core), name="rlhf-watchdog", daemon=True).start()


def _watch(handle: int, core: int) -> None:
    watched = select.poll()
    watched.register(handle, select.POLLIN)
    watched.poll()
    with contextlib.suppress(ProcessLookupError):  # it may end by itself in between
        os.kill(core, signal.SIGTERM)
        time.sleep(GRACE_S)
        os.kill(core, signal.SIGKILL)
