"""The reaper removes what workers of a cluster leave, however they and the driver end, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

import rlhf_plugin_ray.cluster.reaper as program

CHILD = "import sys, time\nfrom multiprocessing import shared_memory, resource_tracker\n"
CHILD += "block = shared_memory.SharedMemory(name=sys.argv[1])\n"
CHILD += "resource_tracker.unregister(block._name, 'shared_memory')\nprint('ready', flush=True)\n"
CHILD += "time.sleep(3600)\n"
MAKER = "import sys, time\nfrom multiprocessing import shared_memory\n"
MAKER += "block = shared_memory.SharedMemory(create=True, size=64)\nblock.close()\n"
MAKER += "print(block.name, flush=True)\ntime.sleep(3600)\n"
DRIVER = "import subprocess, sys, time\n"
DRIVER += "subprocess.Popen([sys.executable, '-I', '-S', *sys.argv[1:]])\ntime.sleep(3600)\n"


def segment() -> Path:
    """A segment that nobody removes at the end of this process."""
    block = shared_memory.SharedMemory(create=True, size=64)
    resource_tracker.unregister(block._name, "shared_memory")
    block.close()
    return Path(program.SHARED) / block.name


def child_of_a_worker(folder: Path, name: Path, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "RLHF_TEMPORARY": str(folder), **variables}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, name.name], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    child.stdout.close()
    return child


def wait_for(what: Callable[[], bool]) -> None:
    give_up = time.monotonic() + HANG_S
    while not what():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def wait_for_polls(pid: int, number: int = 4) -> None:
    """Wait until a reaper looked: it sleeps after each poll, and the kernel counts how often it gave up its core."""
    before = naps(pid)
    wait_for(lambda: naps(pid) >= before + number)


def naps(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (count,) = (line.split()[1] for line in status if line.startswith("voluntary_ctxt_switches:"))
    return int(count)


def handles_sigterm(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM, which would end it before it has one."""
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "rlhf-ray-x"
    path.mkdir()
    return path


@pytest.fixture
def driver(folder):
    """A process that has started a reaper."""
    command = [sys.executable, "-c", DRIVER, program.__file__]
    # As the driver's own process id is known only to it.
    command[2] = DRIVER.replace(
        "*sys.argv[1:]", "sys.argv[1], str(__import__('os').getpid()), sys.argv[2], '0.3'"
    )
    process = subprocess.Popen([*command, str(folder)])
    yield process
    process.kill()
    process.wait()


def reapers(folder: Path) -> list[int]:
    return [
        pid
        for pid in program.processes_of(folder)
        if b"reaper.py" in Path(f"/proc/{pid}/cmdline").read_bytes() and pid != os.getpid()
    ]


def test_a_killed_driver_leaves_no_child_of_a_worker_no_shared_memory_and_no_folder(folder, driver):
    wait_for(lambda: len(reapers(folder)) >= 2)  # the driver names the folder too
    (reaper,) = (pid for pid in reapers(folder) if pid != driver.pid)
    left, gone, own = segment(), segment(), segment()
    worker = child_of_a_worker(folder, left, RAY_RAYLET_PID="1")
    dead = child_of_a_worker(folder, gone, RAY_RAYLET_PID="1")
    beside = child_of_a_worker(folder, own)  # a child of the driver's, not of a worker's
    wait_for_polls(reaper)  # it has seen both
    dead.kill()
    dead.wait()
    assert gone.exists()

    driver.kill()
    driver.wait()

    try:
        wait_for(lambda: worker.poll() is not None)
        wait_for(lambda: not folder.exists())
        assert not left.exists()
        assert not gone.exists()
        assert beside.poll() is None
        assert own.exists()
    finally:
        beside.kill()
        beside.wait()
        own.unlink()


def test_a_reaper_that_is_asked_ends_workers_at_once_and_leaves_the_folder(folder):
    left = segment()
    worker = child_of_a_worker(folder, left, RAY_RAYLET_PID="1")
    reaper = program.start_reaper(os.getpid(), folder)
    wait_for(lambda: handles_sigterm(reaper.pid))

    reaper.send_signal(signal.SIGTERM)

    assert reaper.wait(HANG_S) == 0
    assert worker.wait(HANG_S) == -signal.SIGKILL
    assert folder.exists()
    assert not left.exists()


def test_a_segment_that_only_its_resource_tracker_knows_goes_too(folder):
    """As one that a process makes after the reaper's last look: no map shows it."""
    environment = {**os.environ, "RLHF_TEMPORARY": str(folder), "RAY_RAYLET_PID": "1"}
    worker = subprocess.Popen(
        [sys.executable, "-c", MAKER], env=environment, stdout=subprocess.PIPE, text=True
    )
    made = Path(program.SHARED) / worker.stdout.readline().strip()
    worker.stdout.close()
    assert made.exists()
    reaper = program.start_reaper(os.getpid(), folder)
    wait_for(lambda: handles_sigterm(reaper.pid))

    reaper.send_signal(signal.SIGTERM)

    assert reaper.wait(HANG_S) == 0
    assert worker.wait(HANG_S) == -signal.SIGKILL
    assert not made.exists()


def test_a_new_segment_is_noted_at_once(folder):
    """Its worker may be killed long before the next look, with all who could remove it."""
    reaper = program.start_reaper(os.getpid(), folder, look_s=HANG_S)
    wait_for(lambda: handles_sigterm(reaper.pid))
    wait_for_polls(reaper.pid)  # it has looked
    made = segment()
    worker = child_of_a_worker(folder, made, RAY_RAYLET_PID="1")
    # The reaper looks again when the worker has mapped the first, however slow it was.
    made_later = segment()
    wait_for_polls(reaper.pid)
    worker.kill()
    worker.wait()
    made_later.unlink()
    assert made.exists()

    reaper.send_signal(signal.SIGTERM)

    assert reaper.wait(HANG_S) == 0
    assert not made.exists()
