"""Placement of a run's processes on GPUs, and the check that the machines have enough GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_cli.runs import PlannedRun
from rlhf_core import ConfigError
from rlhf_core.contracts import ENGINE, Colocation, PlansPlacement, ProcessLayout

from ..model.shapes import ModelShape
from .engines import PlannedEngine

WeightPath = Literal["memory", "collective", "store"]
"""Way of weights to the engines: within a GPU's memory, by a collective call, or through Ray's object store."""
LOCAL = "local:local"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProcess:
    """One process on a GPU."""

    roles: tuple[str, ...]
    """Roles that the process holds; empty for a process that is only an engine."""
    engine: bool
    """Whether the process is the engine, or holds the engine beside its roles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKind:
    """GPUs that all have the same processes."""

    name: str
    """Name in the report, from the names of the processes."""
    count: int
    processes: tuple[PlannedProcess, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSize:
    """Machines that the run may use."""

    nodes: int
    gpus_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPlacement:
    """Placement of all processes of a run."""

    kinds: tuple[GpuKind, ...]
    """All GPUs of the run, by the processes on them."""
    engines: int
    in_process: bool
    """Whether the engine shares the policy's process."""
    colocated: bool
    """Whether the engine shares GPUs with the policy."""
    ranks: Mapping[str, int]
    weights: WeightPath
    """Way of the policy's weights to the engines."""

    @property
    def gpus(self) -> int:
        return sum(kind.count for kind in self.kinds)


def place(
    planned: PlannedRun, engine: PlannedEngine, cluster: ClusterSize | None, notes: list[str]
) -> PlannedPlacement:
    """Return the placement of the run's processes.

    Args:
        cluster: the machines that the run may use; None: as many GPUs as the run takes.
        notes: list to which a note on every option that is not modeled is appended.

    Raises:
        ConfigError: options contradict each other, or the cluster has too few GPUs or cannot be divided evenly.
    """
    runtime = planned.runtime
    roles = list(planned.spec.roles)
    options = planned.selections["runtime.name"][0].options
    if isinstance(options, PlansPlacement):
        layout = options.layout(roles, has_gpus=True)
        kinds = []
        for part in layout.colocations:
            kinds += _kinds_of(part, layout.counts, engine)
        ranks = {role: layout.counts[role] for role in roles}
        colocated = ENGINE in layout.of("policy").names
        placement = PlannedPlacement(
            kinds=tuple(kinds),
            engines=layout.counts[ENGINE],
            in_process=False,
            colocated=colocated,
            ranks=ranks,
            weights=_weight_path(layout, engine, colocated=colocated),
        )
        _require_whole_bundles(layout.colocations, cluster)
    else:
        if runtime.name != LOCAL:
            notes.append(f"--runtime {runtime.name} is not modeled; planned as one process")
        if engine.gpus > 1:
            notes.append(
                "an engine of several GPUs beside a trainer in one process: planned, but the engine may refuse to "
                "take weights in this way"
            )
        placement = _one_process(roles, engine)
    if cluster is not None and placement.gpus > cluster.nodes * cluster.gpus_per_node:
        parts = ", ".join(f"{kind.count} for {kind.name}" for kind in placement.kinds)
        raise ConfigError(
            f"the run takes {placement.gpus} GPUs ({parts}), but --nodes and --gpus-per-node give "
            f"{cluster.nodes} x {cluster.gpus_per_node}. Lower runtime.ray.ranks or runtime.ray.engines, let more "
            "roles share GPUs with runtime.ray.colocate, or raise --nodes or --gpus-per-node.",
            code="plan/number-of-gpus",
        )
    return placement


def check_engine(shape: ModelShape, engine: PlannedEngine) -> None:
    """Refuse a tensor or pipeline parallelism that does not divide the model.

    Raises:
        ConfigError: the number does not divide; the message names the argument and the model's number.
    """
    tensor, pipeline = engine.tensor_parallel, engine.pipeline_parallel
    if shape.heads % tensor:
        raise ConfigError(
            f"engine.vllm.args.tensor_parallel_size is {tensor}, which does not divide the model's {shape.heads} "
            f"attention heads. Expected one of {_divisors(shape.heads)}.",
            code="plan/heads",
        )
    if shape.kv_heads % tensor and tensor % shape.kv_heads:
        raise ConfigError(
            f"engine.vllm.args.tensor_parallel_size is {tensor}, but the model has {shape.kv_heads} key and value "
            "heads: one of the two numbers must divide the other",
            code="plan/does-not-divide",
        )
    width, option = shape.ffn, "intermediate_size"
    if shape.experts is not None:
        width, option = shape.experts.width, "moe_intermediate_size"
    if width % tensor:
        raise ConfigError(
            f"engine.vllm.args.tensor_parallel_size is {tensor}, which does not divide the model's {option} {width}",
            code="plan/does-not-divide",
        )
    if pipeline > shape.layers:
        raise ConfigError(
            f"engine.vllm.args.pipeline_parallel_size is {pipeline}, but the model has only {shape.layers} layers",
            code="plan/does-not-divide",
        )


def _one_process(roles: Sequence[str], engine: PlannedEngine) -> PlannedPlacement:
    trainer = PlannedProcess(roles=tuple(roles), engine=engine.embedded)
    own = PlannedProcess(roles=(), engine=True)
    first = (trainer,) if engine.embedded or not engine.modeled else (trainer, own)
    kinds = [GpuKind(name="trainer and engine", count=1, processes=first)]
    if engine.gpus > 1:
        kinds.append(GpuKind(name="engine", count=engine.gpus - 1, processes=(own,)))
    return PlannedPlacement(
        kinds=tuple(kinds),
        engines=1,
        in_process=engine.embedded,
        colocated=True,
        ranks=dict.fromkeys(roles, 1),
        weights="memory",
    )


def _weight_path(layout: ProcessLayout, engine: PlannedEngine, *, colocated: bool) -> WeightPath:
    """Return the way that the options of the runtime give; an engine with several copies gets weights by the store."""
    if layout.weights == "store" or engine.copies > 1:
        return "store"
    return "memory" if colocated else "collective"


def _kinds_of(part: Colocation, counts: Mapping[str, int], engine: PlannedEngine) -> list[GpuKind]:
    """Return the kinds of GPUs of one set of colocated members.

    The GPUs differ if the members have different numbers of processes: later GPUs lack the members with few processes.
    """
    if part.gpus == 0:
        return []
    if part.gpus != int(part.gpus) and part.gpus > 1:
        raise ConfigError(
            f"runtime.ray.gpus_per gives {' + '.join(part.names)} {part.gpus:g} GPUs a process; above 1 the number "
            "has to be whole",
            code="plan/does-not-divide",
        )
    wanted = engine.gpus if part.names == (ENGINE,) else 1
    if ENGINE in part.names and engine.gpus > 1 and len(part.names) > 1:
        others = " + ".join(name for name in part.names if name != ENGINE)
        raise ConfigError(
            f"an engine of {engine.gpus} GPUs (tensor x pipeline x data_parallel_size) cannot share GPUs with "
            f"{others}: leave the engine out of runtime.ray.colocate",
            code="plan/large-engine",
        )
    if part.gpus >= 1 and part.gpus != wanted:
        what = "tensor x pipeline x data_parallel_size" if wanted > 1 else "one rank"
        raise ConfigError(
            f"runtime.ray.gpus_per gives {' + '.join(part.names)} {part.gpus:g} GPUs a process, but {what} takes "
            f"{wanted}. Set --runtime.ray.gpus_per.{part.names[0]} {wanted}.",
            code="plan/gpus-per-process",
        )
    per_gpu = max(1, int(1 / part.gpus)) if part.gpus < 1 else 1
    kinds = []
    start = 0
    for end in sorted({counts[name] for name in part.names}):
        members = [name for name in part.names if counts[name] >= end]
        processes = tuple(
            PlannedProcess(roles=() if name == ENGINE else (name,), engine=name == ENGINE)
            for name in members
        )
        kinds.append(
            GpuKind(
                name=" + ".join(members),
                count=-(-(end - start) // per_gpu) * max(1, int(part.gpus)),
                processes=processes * min(per_gpu, end - start),
            )
        )
        start = end
    return kinds


def _require_whole_bundles(parts: Sequence[Colocation], cluster: ClusterSize | None) -> None:
    """Refuse a number of GPUs per process that does not divide the GPUs of a machine: a process has one machine."""
    if cluster is None:
        return
    for part in parts:
        if part.gpus > cluster.gpus_per_node:
            raise ConfigError(
                f"{' + '.join(part.names)} takes {part.gpus:g} GPUs of one machine, but --gpus-per-node is "
                f"{cluster.gpus_per_node}. Set --gpus-per-node {part.gpus:g}",
                code="plan/does-not-divide",
            )
        if part.gpus > 1 and cluster.gpus_per_node % int(part.gpus):
            raise ConfigError(
                f"{' + '.join(part.names)} takes {part.gpus:g} GPUs a process, which does not divide the "
                f"{cluster.gpus_per_node} GPUs of a machine: some would stand idle. Choose a tensor_parallel_size that "
                f"divides {cluster.gpus_per_node}.",
                code="plan/idle-gpus",
            )


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
