"""What a machine of the cluster answers before anything is loaded on it. Imports no torch, so that it answers soon."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from rlhf_core import FingerprintMismatch, plugins
from rlhf_core.fingerprint import fingerprint, require_equal

from .process import Driver

SHARED_MEMORY = Path("/dev/shm")
MEMORY = Path("/proc/meminfo")
WEIGHT_FILES = ("*.safetensors", "*.bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One machine, as it sees itself."""

    host: str
    has_folder: bool
    """The driver's working directory exists."""
    differing: str | None
    """How its plugins and versions differ from the driver's; None: they do not."""
    missing: tuple[str, ...]
    """Of the paths that were asked for."""
    model_bytes: int
    """Of the weight files of the largest model there."""
    free_memory_bytes: int | None
    """None where the system does not tell."""
    shared_memory_bytes: int | None
    """Size of ``/dev/shm``, used or not."""


def inspect_node(driver: Driver, paths: tuple[str, ...], who: str) -> NodeReport:
    """Return what this machine has of what the run needs.

    Args:
        paths: of models and tokenizers, as the driver would open them from its working directory.
        who: how messages call this machine.
    """
    has_folder = driver.folder.is_dir()
    if has_folder:
        # Components in files are named relative to it.
        os.chdir(driver.folder)
    found = [driver.folder / path for path in paths]
    return NodeReport(
        host=socket.gethostname(),
        has_folder=has_folder,
        differing=_differing(driver, who),
        missing=tuple(text for text, path in zip(paths, found, strict=True) if not path.exists()),
        model_bytes=max((weight_bytes(path) for path in found), default=0),
        free_memory_bytes=_free_memory(),
        shared_memory_bytes=_shared_memory(),
    )


def weight_bytes(folder: Path) -> int:
    """Bytes of the weight files in a folder; 0 if there are none."""
    return max(sum(file.stat().st_size for file in folder.glob(kind)) for kind in WEIGHT_FILES)


def _differing(driver: Driver, who: str) -> str | None:
    mine = plugins.load(driver.plugin_words or "")
    try:
        require_equal(driver.fingerprint, fingerprint(mine), who)
    except FingerprintMismatch as error:
        return str(error)
    return None


def _free_memory() -> int | None:
    """Bytes that programs can still have, disk caches given up."""
    try:
        lines = MEMORY.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _shared_memory() -> int | None:
    return shutil.disk_usage(SHARED_MEMORY).total if SHARED_MEMORY.is_dir() else None
