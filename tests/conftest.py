"""What tests of several rooms share."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest


@pytest.fixture
def no_process_left():
    """Fail when a process that was started during the test is still there after it."""
    before = _family(os.getpid())
    yield
    give_up = time.monotonic() + 3
    while (left := _family(os.getpid()) - before) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert not left, [_command(pid) for pid in left]


def _family(root):
    """Processes below ``root``, children of children included."""
    table = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    )
    parents = dict(map(int, line.split()) for line in table.stdout.splitlines())
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    # ps itself was one of them.
    return {pid for pid in below - {root} if Path(f"/proc/{pid}").exists()}


def _command(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    return pid
