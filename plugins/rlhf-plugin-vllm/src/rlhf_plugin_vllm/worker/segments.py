"""Segments of shared memory in a vLLM worker: whose names they have, and who removes the names.

vLLM's build for CPUs has its shards and stages exchange numbers by segments that it names itself, one a worker and
group. A worker removes the name of its own at the end of its program, which one that is killed does not reach. A
segment needs its name until all workers of the group have mapped it only, so the name goes as soon as they have; the
memory goes with the last of the processes, however they end.
"""

from __future__ import annotations

from contextlib import suppress
from os import unlink
from pathlib import Path

SHARED = "/dev/shm/"
PYTHONS = "psm_"
"""Beginning of the names of Python's segments."""
GROUPS = "-cpushm_"
"""Words between the name of vLLM's group and the number of the worker in it that made the segment."""


def remove_names(*, of_groups_alone: bool) -> None:
    """Remove the names of this process's segments; what is mapped stays mapped.

    Args:
        of_groups_alone: those of vLLM's groups, which are whole once the model is made, and no segment of Python's.
    """
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.split(maxsplit=5)[-1]
        if not path.startswith(SHARED):
            continue
        name = path.removeprefix(SHARED)
        if GROUPS in name or (name.startswith(PYTHONS) and not of_groups_alone):
            with suppress(
                OSError
            ):  # another worker of the group was faster, or the name went long ago
                unlink(path)
