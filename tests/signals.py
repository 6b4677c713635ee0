"""Signals one after the other: two of one number that are pending at once are one."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.deadlines import HANG_S


def send_and_wait(pid: int, number: int, send: Callable[[int, int], None] = os.kill) -> None:
    """Send a signal to a process whose main thread waits for something, and wait until that thread has taken it and
    waits again.

    Args:
        send: ``os.kill``, or ``os.killpg`` for all of the process's group.
    """
    naps = _fact(pid, "voluntary_ctxt_switches", 10)
    send(pid, number)
    give_up = time.monotonic() + HANG_S
    while (
        _fact(pid, "ShdPnd", 16) >> number - 1 & 1
        or _fact(pid, "voluntary_ctxt_switches", 10) == naps
    ):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def _fact(pid: int, name: str, base: int) -> int:
    """A number of a process's main thread."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(value, base)
