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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One process that has weights or wants them."""

    machine: str
    """Equal for processes that can open each other's memory: kernel's boot and namespace of process ids."""
    device: str | None
    """The GPU's own id, whatever number the process knows it by; None on a CPU."""


def place_of(device: torch.device) -> Place:
    """Return this process's place with ``device``."""
    boot = FilePath("/proc/sys/kernel/random/boot_id").read_text().strip()
    machine = f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    if device.type != "cuda":
        return Place(machine=machine, device=None)
    uuid = torch.cuda.get_device_properties(device).uuid
    return Place(machine=machine, device=str(uuid))


def same_memory(sender: Place, receivers: Sequence[Place]) -> bool:
    """True when all receivers can map what the sender has in its device's memory."""
    return all(
        place.machine == sender.machine and place.device == sender.device for place in receivers
    )


def can_meet(sender: Place, receivers: Sequence[Place]) -> bool:
    """True when a broadcast can reach all receivers: devices of one kind, and no GPU twice, which NCCL refuses."""
    places = [sender, *receivers]
    devices = [place.device for place in places]
    if sender.device is None:
        return not any(devices)
    return all(devices) and len({(place.machine, place.device) for place in places}) == len(places)
