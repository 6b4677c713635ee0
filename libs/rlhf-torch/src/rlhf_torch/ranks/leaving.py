"""The end of a rank: its process group is destroyed, and the threads of gloo are at rest before the interpreter ends.

A thread of gloo drops the tensors of a collective call after the caller went on. Should the interpreter end in between,
dropping a tensor asks for the interpreter's lock, and the process dies of SIGABRT ("terminate called without an active
exception") although all its work is done; see https://github.com/pytorch/pytorch/pull/179291. Destroying the process
group waits for its threads only if nothing else keeps the group, and engines of DeepSpeed do keep it.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch.distributed as dist

THREADS = Path("/proc/self/task")
GLOO_THREAD = "pt_gloo_runloop"
QUIET_LOOKS = 5
"""Number of looks in a row that must find every thread waiting, since a busy thread may wait for a lock during one."""
LOOK_S = 0.002
LIMIT_S = 10.0
"""Time after which the process ends although a thread is still busy."""


def leave() -> None:
    """Destroy the process group if there is one, and wait until no thread of gloo has work left."""
    if dist.is_initialized():
        dist.destroy_process_group()
    end = time.monotonic() + LIMIT_S
    quiet = 0
    while quiet < QUIET_LOOKS and time.monotonic() < end:
        quiet = 0 if _is_any_busy() else quiet + 1
        time.sleep(LOOK_S)


def _is_any_busy() -> bool:
    """Whether a thread of gloo runs or could run; False on systems without /proc."""
    if not THREADS.is_dir():
        return False
    return any(_is_busy(thread) for thread in THREADS.iterdir())


def _is_busy(thread: Path) -> bool:
    try:
        status = (thread / "stat").read_text()
    except OSError:  # The thread has ended since the folder was listed.
        return False
    # proc_pid_stat(5): the name in parentheses, a blank, and one letter, S for a thread that waits.
    name, state = status.split("(", 1)[1].rsplit(")", 1)
    return name == GLOO_THREAD and not state.startswith(" S")
