"""Places of processes and their devices, and the paths that weights can take between places."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Literal

import torch

Path = Literal["memory", "collective"]
"""Path of buckets. ``memory``: sender and receivers map the same memory, of a host or of a GPU. ``collective``: a
broadcast to receivers elsewhere, by NCCL between GPUs and by gloo between CPUs."""
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of one process that sends or receives weights."""

    machine: str
    """Name that is equal for processes that can open each other's memory and reach each other by loopback."""
    device: str | None
    """Id of the GPU, which does not depend on the process's numbering; None on a CPU."""


def place_of(device: torch.device) -> Place:
    """Return this process's place with ``device``."""
    if device.type != "cuda":
        return Place(machine=_machine(), device=None)
    uuid = torch.cuda.get_device_properties(device).uuid
    return Place(machine=_machine(), device=str(uuid))


def same_memory(sender: Place, receivers: Sequence[Place]) -> bool:
    """Return whether all receivers can map the memory of the sender's device."""
    return all(
        place.machine == sender.machine and place.device == sender.device for place in receivers
    )


def can_meet(sender: Place, receivers: Sequence[Place]) -> bool:
    """Return whether a broadcast can reach all receivers: devices of one kind, no GPU twice, which NCCL refuses."""
    devices = [place.device for place in (sender, *receivers)]
    if sender.device is None:
        return not any(devices)
    # Machines are not compared, since two containers of one host can have the same GPU.
    return all(devices) and len(set(devices)) == len(devices)


def _machine() -> str:
    """Return the name of the part of a machine within which processes can share memory.

    Two containers of one host may have different names. The name joins the kernel's boot id; the namespace of process
    ids, in which an anonymous file is opened; the namespace of the network, whose loopback the processes use; and, for
    CUDA IPC, the namespace of IPC and the file system at ``/dev/shm``, in which torch counts users of GPU memory.
    """
    boot = FilePath("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net", "ipc")]
    shared = os.stat(SHARED_MEMORY).st_dev if os.path.isdir(SHARED_MEMORY) else None
    return "/".join([boot, *spaces, f"shm:{shared}"])
