"""Layouts: the processes of a run and the CPUs and GPUs that they share, as planned before anything is started."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ENGINE = "engine"
"""Name of the engines among the names of roles, in options and mappings."""
ROLLOUT = "rollout"
"""Name of rollout workers among the names of roles, in options and mappings."""


WeightWay = Literal["auto", "store", "memory", "collective"]
"""Transport of weights from ranks to engines: an object store, memory that rank and engine share (of one GPU or,
without GPUs, of one machine), or a collective call; ``auto``: the runtime chooses by the places of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Colocation:
    """Names whose processes share bundles: process i of each name is in bundle i."""

    names: tuple[str, ...]
    """Roles by name, ``ENGINE`` or ``ROLLOUT``."""
    num_bundles: int
    """Number of bundles; each is a place for processes on one device."""
    cpus: float
    """CPUs of one bundle."""
    gpus: float
    """GPUs of one bundle."""
    spread: bool = False
    """True: the bundles are spread over many machines; False: they are packed on few."""

    @property
    def cpus_per_process(self) -> float:
        """CPUs of each process: an equal share of the bundle's CPUs."""
        return _share(self.cpus, len(self.names))

    @property
    def gpus_per_process(self) -> float:
        """GPUs of each process: an equal share of the bundle's GPUs."""
        return _share(self.gpus, len(self.names))

    @property
    def bundle(self) -> dict[str, float]:
        """Resources of one bundle by name: ``CPU``, and ``GPU`` where it has any."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLayout:
    """All processes of a run."""

    counts: Mapping[str, int]
    """Number of processes by role name, ``ENGINE`` and, if there are rollout workers, ``ROLLOUT``."""
    colocations: tuple[Colocation, ...]
    """Colocations of the run; each name is in exactly one of them."""
    weights: WeightWay = "auto"
    """Transport of weights to engines that the options ask for."""

    def of(self, name: str) -> Colocation:
        """Return the colocation that a name is in."""
        return next(part for part in self.colocations if name in part.names)

    def describe(self) -> str:
        """Return one line for each colocation, such as ``policy x2 + engine x2: 2 x (1 CPU, 1 GPU)``."""
        lines = []
        for part in self.colocations:
            members = " + ".join(f"{name} x{self.counts[name]}" for name in part.names)
            gpus = f", {part.gpus:g} GPU" if part.gpus else ""
            lines.append(f"{members}: {part.num_bundles} x ({part.cpus:g} CPU{gpus})")
        return "\n".join(lines)


def _share(amount: float, num: int) -> float:
    """Return ``amount / num``, rounded down to ten-thousandths, so that shares never add up to more than the amount."""
    return math.floor(amount / num * 10_000) / 10_000
