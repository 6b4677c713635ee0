"""What the times of a step depend on, and what is said of each of its phases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_cli.runs import PlannedRun

from .engines import PlannedEngine
from .hardware import Gpu
from .placement import Cluster, Placement
from .roles import PlannedRole, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a step."""

    name: str
    limit_s: float
    """What no implementation of this model in this precision goes below."""
    measured_s: float | None
    """At the share of the limit that was measured; None where nothing was."""
    bound: str
    """What the limit is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that the times depend on."""

    planned: PlannedRun
    gpu: Gpu
    cluster: Cluster | None
    workload: Workload
    placement: Placement
    engine: PlannedEngine
    kv_tokens: int
    """For which one copy of the model in an engine has room."""
    roles: Mapping[str, PlannedRole]

    def link(self, processes: int) -> float:
        """Bytes per second between that many GPUs, the slowest link on the way."""
        per_node = self.cluster.gpus_per_node if self.cluster else 8
        rate = self.gpu.link_gb_s if processes <= per_node else self.gpu.network_gb_s
        return 1e9 * rate

    @property
    def copies(self) -> int:
        """Of the model in all engines, each with requests of its own."""
        return self.placement.engines * self.engine.copies

    @property
    def drawn_prompts(self) -> int:
        """Prompts that a step generates. On-policy those drawn beyond the batch are thrown away; else they wait for the
        next step, which draws as many fewer."""
        rollout = self.planned.run.rollout
        if rollout.max_staleness > 0:
            return self.workload.prompts
        return math.ceil(self.workload.prompts * rollout.oversampling)
