"""Where a process and its device are, and how weights get from one to another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Literal

import torch

Path = Literal["memory", "collective"]
"""``memory``: sender and receivers look into the same memory, of a host or of a GPU. ``collective``: a broadcast to
receivers elsewhere, by NCCL between GPUs and by gloo between CPUs."""
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One process that has weights or wants them."""

    machine: str
    """Equal for processes that can open each other's memory and reach each other by loopback. See ``_machine``."""
    device: str | None
    """The GPU's own id, whatever number the process knows it by; None on a CPU."""


def place_of(device: torch.device) -> Place:
    """Return this process's place with ``device``."""
    if device.type != "cuda":
        return Place(machine=_machine(), device=None)
    uuid = torch.cuda.get_device_properties(device).uuid
    return Place(machine=_machine(), device=str(uuid))


def same_memory(sender: Place, receivers: Sequence[Place]) -> bool:
    """True when all receivers can map what the sender has in its device's memory."""
    return all(
        place.machine == sender.machine and place.device == sender.device for place in receivers
    )


def can_meet(sender: Place, receivers: Sequence[Place]) -> bool:
    """True when a broadcast can reach all receivers: devices of one kind, and no GPU twice, which NCCL refuses."""
    devices = [place.device for place in (sender, *receivers)]
    if sender.device is None:
        return not any(devices)
    # Without the machine: two containers of one host can have the same GPU.
    return all(devices) and len(set(devices)) == len(devices)


def _machine() -> str:
    """Name what two processes have to have in common, which on one host two containers may not have.

    The kernel's boot; the namespace of process ids, by which an anonymous file is opened; that of the network, without
    which 127.0.0.1 is another one; and, for CUDA IPC, that of IPC and the file system at ``/dev/shm``, in which torch
    counts who has memory of a GPU open.
    """
    boot = FilePath("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net", "ipc")]
    shared = os.stat(SHARED_MEMORY).st_dev if os.path.isdir(SHARED_MEMORY) else None
    return "/".join([boot, *spaces, f"shm:{shared}"])
