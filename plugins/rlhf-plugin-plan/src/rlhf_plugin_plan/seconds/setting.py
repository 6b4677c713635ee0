"""Inputs of the prediction of times, and the result for one phase of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_cli.runs import PlannedRun

from ..machine.hardware import GpuSpec
from ..memory.engines import PlannedEngine
from ..memory.placement import ClusterSize, PlannedPlacement
from ..memory.planned_roles import PlannedRole
from ..memory.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a step."""

    name: str
    """Name in the report."""
    limit_s: float
    """Seconds at the hardware's limit, which no implementation of this model in this precision can beat."""
    measured_s: float | None = None
    """Seconds at the measured share of the limit; None without a measurement."""
    bound: str
    """Part of the hardware that sets the limit."""

    @property
    def seconds(self) -> float:
        """Seconds at measured rates; without a measurement those at the limit."""
        return self.limit_s if self.measured_s is None else self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All inputs of the prediction of times."""

    planned: PlannedRun
    gpu: GpuSpec
    cluster: ClusterSize | None
    workload: Workload
    placement: PlannedPlacement
    engine: PlannedEngine
    kv_tokens: int
    """Number of tokens that fit in the KV cache of one copy of the model."""
    roles: Mapping[str, PlannedRole]

    def link(self, processes: int) -> float:
        """Return the bytes per second between ``processes`` GPUs, over the slowest link on the way."""
        per_node = self.cluster.gpus_per_node if self.cluster else 8
        rate = self.gpu.link_gb_s if processes <= per_node else self.gpu.network_gb_s
        return 1e9 * rate

    @property
    def copies(self) -> int:
        """Number of copies of the model in all engines; each copy serves requests of its own."""
        return self.placement.engines * self.engine.copies

    @property
    def drawn_prompts(self) -> int:
        """Number of prompts that a step generates.

        On-policy, surplus prompts of ``oversampling`` are thrown away. With stale samples allowed the surplus waits for
        the next step, which draws as many fewer.
        """
        rollout = self.planned.run.rollout
        if rollout.max_staleness > 0:
            return self.workload.prompts
        return math.ceil(self.workload.prompts * rollout.oversampling)
