"""A machine's report about itself, made before a model is loaded there. Imports no torch, so that it comes quickly."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rlhf_core import FingerprintMismatch, plugins
from rlhf_core.fingerprint import fingerprint, require_equal

from ..processes.process import Driver

SHARED_MEMORY = Path("/dev/shm")
MEMORY = Path("/proc/meminfo")
WEIGHT_FILES = ("*.safetensors", "*.bin")
GPU_QUERY = ("nvidia-smi", "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits")
GPU_QUERY_S = 5.0
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """The memory of one GPU."""

    total_bytes: int
    free_bytes: int
    """Bytes that no process holds at the moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """Report of one machine about itself."""

    host: str
    has_folder: bool
    """True if the driver's working directory exists on the machine."""
    differing: str | None
    """Message about how the machine's plugins and versions differ from the driver's; None if they are equal."""
    missing: tuple[str, ...]
    """Paths of the run that do not exist on the machine."""
    model_bytes: int
    """Bytes of the weight files of the run's largest model on the machine."""
    free_memory_bytes: int | None
    """Bytes of memory that programs can still have; None where the system does not say."""
    shared_memory_bytes: int | None
    """Bytes that ``/dev/shm`` can hold, used bytes included; None where the machine has none."""
    gpus: tuple[GpuReport, ...] = ()
    """GPUs that NVIDIA's driver knows, also those that Ray does not manage."""


def inspect_node(driver: Driver, paths: tuple[str, ...], who: str) -> NodeReport:
    """Return this machine's report.

    Args:
        driver: properties of the driver's process, which this machine is compared with.
        paths: paths of models and tokenizers, relative to the driver's working directory.
        who: name of this machine in messages.
    """
    has_folder = driver.folder.is_dir()
    if has_folder:
        # Components in users' files are named relative to the working directory.
        os.chdir(driver.folder)
    found = [driver.folder / path for path in paths]
    return NodeReport(
        host=socket.gethostname(),
        has_folder=has_folder,
        differing=_differing(driver, who),
        missing=tuple(text for text, path in zip(paths, found, strict=True) if not path.exists()),
        model_bytes=max((weight_bytes(path) for path in found), default=0),
        free_memory_bytes=_free_memory(),
        shared_memory_bytes=shutil.disk_usage(SHARED_MEMORY).total
        if SHARED_MEMORY.is_dir()
        else None,
        gpus=find_gpus(),
    )


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weight files in a folder; 0 if there are none."""
    return max(sum(file.stat().st_size for file in folder.glob(kind)) for kind in WEIGHT_FILES)


def find_gpus() -> tuple[GpuReport, ...]:
    """Return this machine's GPUs as ``nvidia-smi`` tells them, since importing torch would take seconds.

    The result is empty if ``nvidia-smi`` is missing or does not answer.
    """
    try:
        listing = subprocess.run(
            GPU_QUERY, capture_output=True, text=True, check=True, timeout=GPU_QUERY_S
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return gpus_of(listing)


def gpus_of(listing: str) -> tuple[GpuReport, ...]:
    """Return the GPUs in lines of ``total, free`` in MiB. Lines without numbers (of a slice of a GPU) are ignored."""
    rows = [line.split(",") for line in listing.splitlines()]
    return tuple(
        GpuReport(total_bytes=int(row[0]) * MIB, free_bytes=int(row[1]) * MIB)
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
    """Return the bytes of memory that programs can still have once the system drops its disk caches."""
    try:
        lines = MEMORY.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
