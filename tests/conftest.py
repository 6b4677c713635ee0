"""What tests of several rooms share."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

_FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session", autouse=True)
def _signals_of_a_terminal():
    """A job in the background ignores SIGINT, and one under nohup SIGHUP; tests start as in a terminal."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    for number, handler in usual.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.fixture
def no_process_left(request):
    """Fail when a process that was started during the test is still there after it, and end it."""
    before = _family(os.getpid())
    yield
    # Of a test that failed, what it started is not waited for.
    patience = 0 if request.node.stash.get(_FAILED, True) else HANG_S
    give_up = time.monotonic() + patience
    while (left := _family(os.getpid()) - before) and time.monotonic() < give_up:
        time.sleep(0.02)
    commands = [_command(pid) for pid in left]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert patience == 0 or not commands, commands


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
