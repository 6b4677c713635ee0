"""Memory of the processes on a GPU, with sleep and without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf_core.contracts import Leaving

from .placement import GpuKind
from .sleep import SleepPeaks
from .training_memory import Parts, RoleMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Memory of one process on one GPU."""

    name: str
    """Names of the roles, and ``engine``."""
    roles: Mapping[str, RoleMemory]
    parts: Parts
    """Bytes of all roles' resident parts, the engine, the largest moment of one role, and the fixed allowances."""
    torch_peak: float
    """Bytes of the tensors of the trainer and of the embedded engine alone, as ``torch.cuda.max_memory_allocated``
    counts them; 0 for vLLM."""

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Memory of each GPU of one kind."""

    kind: GpuKind
    processes: tuple[ProcessMemory, ...]
    """Memory of each process on one of these GPUs, if nothing sleeps."""
    choices: Mapping[Leaving, SleepPeaks] = field(default_factory=dict)
    """Peaks with and without sleep, by what leaves while the engine generates; empty: no role shares the GPU with an
    engine."""
    sleeps: bool = False
    """Whether engine and roles take turns."""
    leaving: Leaving = "all"
    """Parts of the roles that leave, if they do."""

    @property
    def peaks(self) -> SleepPeaks | None:
        """Peaks with and without sleep; None: no role shares the GPU with an engine."""
        return self.choices.get(self.leaving)

    @property
    def awake(self) -> float:
        """Bytes in use on one of these GPUs, as the driver counts them, if nothing sleeps."""
        return sum(process.total for process in self.processes)

    @property
    def total(self) -> float:
        """Bytes in use on one of these GPUs at the run's worst moment."""
        if self.sleeps and self.peaks is not None:
            return max(self.peaks.asleep.values())
        return self.awake
