"""What a machine of the cluster answers before anything is loaded on it. Imports no torch, so that it answers soon."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rlhf_core import FingerprintMismatch, plugins
from rlhf_core.fingerprint import fingerprint, require_equal

from .process import Driver

SHARED_MEMORY = Path("/dev/shm")
MEMORY = Path("/proc/meminfo")
WEIGHT_FILES = ("*.safetensors", "*.bin")
GPU_QUERY = ("nvidia-smi", "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits")
GPU_QUERY_S = 5.0
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The memory of one GPU."""

    total_bytes: int
    free_bytes: int
    """Held by no process at the moment."""


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
    gpus: tuple[Gpu, ...] = ()
    """Those that NVIDIA's driver knows, whether Ray was given them or not."""


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
        gpus=find_gpus(),
    )


def weight_bytes(folder: Path) -> int:
    """Bytes of the weight files in a folder; 0 if there are none."""
    return max(sum(file.stat().st_size for file in folder.glob(kind)) for kind in WEIGHT_FILES)


def find_gpus() -> tuple[Gpu, ...]:
    """Ask ``nvidia-smi``, since torch would take seconds to import; none where it is missing or does not answer."""
    try:
        told = subprocess.run(
            GPU_QUERY, capture_output=True, text=True, check=True, timeout=GPU_QUERY_S
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return gpus_of(told)


def gpus_of(told: str) -> tuple[Gpu, ...]:
    """Read lines of ``total, free`` in MiB; a GPU that does not tell, such as a slice of one, is left out."""
    rows = [line.split(",") for line in told.splitlines()]
    return tuple(
        Gpu(total_bytes=int(row[0]) * MIB, free_bytes=int(row[1]) * MIB)
        for row in rows
        if len(row) == 2 and all(word.strip().isdigit() for word in row)
    )


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
