"""The number of CPU threads of torch where no option says it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rlhf_core.contracts import RoleSpec

TINY_BYTES = 4 * 2**20
"""Weight files up to which a model is computed faster by one thread: a million parameters in float32."""


def default_threads(roles: Iterable[RoleSpec]) -> int:
    """Return what OMP_NUM_THREADS says, as torch reads it; else 1 if every role's model is tiny; else the number of
    cores that this process may use, which in a container are fewer than the machine has.

    Products of a tiny model take microseconds. Threads that share one wait for each other as long, and for milliseconds
    where another program has the core.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").strip()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    if all(is_tiny(Path(role.model_path)) for role in roles):
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_tiny(folder: Path) -> bool:
    """Return True for a folder with a whole model whose weight files have ``TINY_BYTES`` at most.

    False for a hub name, and for an adapter's folder, whose base is elsewhere.
    """
    if not (folder / "config.json").is_file() or (folder / "adapter_config.json").exists():
        return False
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    return bool(sizes) and sum(sizes) <= TINY_BYTES
