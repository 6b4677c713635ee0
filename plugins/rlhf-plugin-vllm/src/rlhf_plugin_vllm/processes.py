"""vLLM's processes, which are children of the engine's process: a core and its workers."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING

from rlhf_core.signals import SCHEDULER_WARNINGS, held_back

from . import compat

if TYPE_CHECKING:
    import psutil
    from vllm.v1.engine.async_llm import AsyncLLM

GRACE_S = 20.0
"""Seconds for vLLM's processes to end by themselves. A killed core leaves its shared memory to Python's resource
tracker."""
KILL_S = 5.0
"""Seconds to wait for processes to end before they are killed, and again after that."""


@contextmanager
def deaf_to_the_terminal() -> Iterator[None]:
    """Start processes in the body that neither Ctrl-C, a closed terminal nor a scheduler's warning ends.

    A terminal sends these signals to all of its processes. What they stop is for the engine's owner to say: a run
    finishes its step first, which needs the engine, and a conversation goes on without the answer.
    """
    # Python starts this process before the first child that it spawns, and takes SIGINT out of the mask as it does.
    resource_tracker.ensure_running()
    with held_back(signal.SIGINT, signal.SIGHUP, *SCHEDULER_WARNINGS):
        yield


def family(llm: AsyncLLM) -> list[psutil.Process]:
    """Return the processes that ``llm`` has started, and all of their descendants."""
    import psutil

    found: list[psutil.Process] = []
    for pid in compat.core_pids(llm):
        try:
            core = psutil.Process(pid)
            found += [core, *core.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found


def end(processes: Sequence[psutil.Process]) -> None:
    """Kill the processes that do not end by themselves, and return when none is left."""
    import psutil

    _, alive = psutil.wait_procs(processes, timeout=KILL_S)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=KILL_S)
