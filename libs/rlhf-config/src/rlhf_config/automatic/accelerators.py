"""Accelerators of this machine, found without torch: a choice by them is made before anything heavy is imported."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rlhf_core.contracts.engine import Accelerator

_QUERY = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
_PATIENCE_S = 60.0
"""Seconds after which nvidia-smi hangs. On a busy machine it takes some."""


def visible_accelerators() -> tuple[Accelerator, ...]:
    """Return the GPUs that torch would use in this process; none where its build is for CPUs.

    The driver's device files say whether there are any, so that a machine without them pays nothing. Names and memory
    come from ``nvidia-smi``, and are unknown where it cannot tell them.
    """
    files = sorted(Path("/dev").glob("nvidia[0-9]*"))
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not files or _is_for_cpus():
        return ()
    try:
        listing = subprocess.run(
            _QUERY, capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        listing = "\n".join(f"{number}, , GPU, " for number in range(len(files)))
    return visible(listing.splitlines(), allowed)


def visible(listing: Sequence[str], allowed: str | None) -> tuple[Accelerator, ...]:
    """Return the GPUs of lines ``index, uuid, name, MiB`` that ``CUDA_VISIBLE_DEVICES`` allows.

    Args:
        allowed: indices or beginnings of UUIDs with commas; what follows an unknown one is not visible, as for CUDA.
            None: all.
    """
    rows = [[part.strip() for part in line.split(",")] for line in listing if line.count(",") == 3]
    if allowed is None:
        return tuple(_accelerator(row) for row in rows)
    found: list[Accelerator] = []
    for word in allowed.split(","):
        name = word.strip()
        row = next((row for row in rows if name and _is_named(row, name)), None)
        if row is None:
            break
        found.append(_accelerator(row))
    return tuple(found)


def _is_named(row: Sequence[str], name: str) -> bool:
    return row[0] == name or (name.startswith("GPU-") and row[1].startswith(name))


def _accelerator(row: Sequence[str]) -> Accelerator:
    memory = float(row[3]) / 1024 if row[3].replace(".", "", 1).isdigit() else None
    return Accelerator(name=row[2], memory_gib=memory)


def _is_for_cpus() -> bool:
    try:
        build = version("torch")
    except PackageNotFoundError:
        return True
    return "+cpu" in build
