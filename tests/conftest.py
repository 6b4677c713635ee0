"""What tests of several rooms share."""

import contextlib
import gc
import os
import signal
import subprocess
import tempfile
import time
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
import tests.importable_torchvision  # noqa: F401  # before what imports torchvision
from hypothesis import HealthCheck, settings
from tests.cases import LONGEST, MARKERS, could_be_chosen, markers_named_in
from tests.deadlines import HANG_S

_FAILED = pytest.StashKey[bool]()

# trackio looks at TRACKIO_DIR once in a process, when the first library imports it, which may be in any test.
_trackio = tempfile.TemporaryDirectory(prefix="trackio-")
os.environ["TRACKIO_DIR"] = _trackio.name
_cache = tempfile.TemporaryDirectory(prefix="rlhf-cache-")
os.environ["RLHF_CACHE"] = _cache.name

# A test fails for a wrong result, never for a slow machine.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def _signals_of_a_terminal():
    """A job in the background ignores SIGINT, and one under nohup SIGHUP; tests start as in a terminal."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    for number, handler in usual.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_ignore_collect(collection_path, config):
    """Leave files out that have none of the tests that ``-m`` asks for: slow tests are in one file of six."""
    if not collection_path.match("test_*.py"):
        return None
    return not could_be_chosen(collection_path.read_text(), config.option.markexpr) or None


@pytest.fixture
def nothing_frozen():
    """As in a process that runs no tests, which does not look for garbage among what was alive before them."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Look for garbage only in what tests make: modules and thousands of collected tests are none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Let the longest files come first, and refuse a marker that its file does not name."""
    named = {}
    for item in items:
        if item.path not in named:
            named[item.path] = markers_named_in(item.path.read_text())
        if lacking := {mark.name for mark in item.iter_markers()} & MARKERS - named[item.path]:
            raise pytest.UsageError(
                f"{item.nodeid} has the marker {lacking.pop()}, but its file does not name it, by which it is found"
            )
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.fixture
def no_process_left(request):
    """Fail when a process that was started during the test is still there after it, and end it."""
    resource_tracker.ensure_running()  # it belongs to this process, whichever test is the first to need it
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
