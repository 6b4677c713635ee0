"""Which processes stand on which GPU, and whether the machines have room for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_cli.runs import PlannedRun
from rlhf_core import ConfigError
from rlhf_plugin_ray.config import RayRuntimeConfig
from rlhf_plugin_ray.layout import ENGINE, Colocation, plan_layout

from .engines import PlannedEngine
from .shapes import ModelShape

WeightPath = Literal["memory", "collective", "store"]
LOCAL, RAY = "local:local", "ray:ray"
SEVERAL_RANKS = "several_ranks"
"""What a training backend provides that can be one of several ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process on a GPU."""

    roles: tuple[str, ...]
    engine: bool
    """It is the engine, or holds it beside the roles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKind:
    """GPUs on which the same stands."""

    name: str
    count: int
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The machines that the run may use."""

    nodes: int
    gpus_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """All of a run."""

    kinds: tuple[GpuKind, ...]
    engines: int
    in_process: bool
    """The engine shares the policy's process."""
    colocated: bool
    """The engine shares GPUs with the policy."""
    ranks: Mapping[str, int]
    weights: WeightPath
    """How they come to the engines."""

    @property
    def gpus(self) -> int:
        return sum(kind.count for kind in self.kinds)


def place(
    planned: PlannedRun, engine: PlannedEngine, cluster: Cluster | None, notes: list[str]
) -> Placement:
    """Return who shares which GPU.

    Raises:
        ConfigError: options that contradict each other, or GPUs that are not there or do not divide.
    """
    runtime = planned.runtime
    roles = list(planned.spec.roles)
    if runtime.name == RAY:
        config = RayRuntimeConfig.model_validate(dict(runtime.options))
        layout = plan_layout(config, roles, has_gpus=True)
        kinds = []
        for part in layout.colocations:
            kinds += _kinds_of(part, layout.counts, engine)
        ranks = {role: layout.counts[role] for role in roles}
        _require_several(planned, ranks)
        colocated = ENGINE in layout.of("policy").names
        placement = Placement(
            kinds=tuple(kinds),
            engines=layout.counts[ENGINE],
            in_process=False,
            colocated=colocated,
            ranks=ranks,
            weights=_weight_path(config, engine, colocated=colocated),
        )
        _require_whole_bundles(layout.colocations, cluster)
    else:
        if runtime.name != LOCAL:
            notes.append(f"--runtime {runtime.name} is not modeled; planned as one process")
        if engine.gpus > 1:
            notes.append(
                "an engine of several GPUs beside a trainer in one process: planned, but whether weights can "
                "travel so is the engine's to say"
            )
        placement = _one_process(roles, engine)
    if cluster is not None and placement.gpus > cluster.nodes * cluster.gpus_per_node:
        raise ConfigError(
            f"the run takes {placement.gpus} GPUs ({_describe(placement)}); {cluster.nodes} x "
            f"{cluster.gpus_per_node} were given. Lower runtime.ray.ranks or engines, put more together with "
            "runtime.ray.colocate, or raise --nodes or --gpus-per-node."
        )
    return placement


def check_engine(shape: ModelShape, engine: PlannedEngine) -> None:
    """Refuse tensor or pipeline parallelism that the model does not divide by.

    Raises:
        ConfigError: names the argument and what it would have to divide.
    """
    tensor, pipeline = engine.tensor_parallel, engine.pipeline_parallel
    if shape.heads % tensor:
        raise ConfigError(
            f"engine.vllm.args.tensor_parallel_size is {tensor}; the model has {shape.heads} attention heads, which "
            f"it does not divide. Expected one of {_divisors(shape.heads)}."
        )
    if shape.kv_heads % tensor and tensor % shape.kv_heads:
        raise ConfigError(
            f"engine.vllm.args.tensor_parallel_size is {tensor}; the model has {shape.kv_heads} key and value heads: "
            "one number has to divide the other"
        )
    if shape.ffn % tensor:
        raise ConfigError(
            f"engine.vllm.args.tensor_parallel_size is {tensor}; the model's intermediate_size {shape.ffn} does not "
            "divide by it"
        )
    if pipeline > shape.layers:
        raise ConfigError(
            f"engine.vllm.args.pipeline_parallel_size is {pipeline}; the model has {shape.layers} layers"
        )


def _require_several(planned: PlannedRun, ranks: Mapping[str, int]) -> None:
    """Refuse several ranks of a backend that trains in one process."""
    (backend,) = planned.selections["backend.name"]
    many = [f"runtime.ray.ranks.{role} = {num}" for role, num in ranks.items() if num > 1]
    if many and SEVERAL_RANKS not in backend.registered.component.provides:
        raise ConfigError(
            f"{', '.join(many)}: --backend {backend.registered.name} trains in one process only; choose a backend that "
            f"provides {SEVERAL_RANKS!r}, such as deepspeed"
        )


def _one_process(roles: Sequence[str], engine: PlannedEngine) -> Placement:
    trainer = Process(roles=tuple(roles), engine=engine.embedded)
    own = Process(roles=(), engine=True)
    first = (trainer,) if engine.embedded or not engine.modeled else (trainer, own)
    kinds = [GpuKind(name="trainer and engine", count=1, processes=first)]
    if engine.gpus > 1:
        kinds.append(GpuKind(name="engine", count=engine.gpus - 1, processes=(own,)))
    return Placement(
        kinds=tuple(kinds),
        engines=1,
        in_process=engine.embedded,
        colocated=True,
        ranks=dict.fromkeys(roles, 1),
        weights="memory",
    )


def _weight_path(config: RayRuntimeConfig, engine: PlannedEngine, *, colocated: bool) -> WeightPath:
    """What ``runtime.ray.weights`` comes to; replicas of one engine are not reached by a link."""
    if config.weights == "store" or engine.copies > 1:
        return "store"
    return "memory" if colocated else "collective"


def _kinds_of(part: Colocation, counts: Mapping[str, int], engine: PlannedEngine) -> list[GpuKind]:
    """GPUs of one set. Its bundles differ where its members have different numbers of processes."""
    if part.gpus == 0:
        return []
    if part.gpus != int(part.gpus) and part.gpus > 1:
        raise ConfigError(
            f"runtime.ray.gpus_per gives {' + '.join(part.names)} {part.gpus:g} GPUs a process; above 1 it has to be "
            "a whole number"
        )
    wanted = engine.gpus if part.names == (ENGINE,) else 1
    if ENGINE in part.names and engine.gpus > 1 and len(part.names) > 1:
        others = " + ".join(name for name in part.names if name != ENGINE)
        raise ConfigError(
            f"an engine of {engine.gpus} GPUs (tensor x pipeline x data_parallel_size) cannot share GPUs with "
            f"{others}: leave it out of runtime.ray.colocate"
        )
    if part.gpus >= 1 and part.gpus != wanted:
        what = "tensor x pipeline x data_parallel_size" if wanted > 1 else "one rank"
        raise ConfigError(
            f"runtime.ray.gpus_per gives {' + '.join(part.names)} {part.gpus:g} GPUs a process, but {what} takes "
            f"{wanted}. Set --runtime.ray.gpus_per.{part.names[0]} {wanted}."
        )
    per_gpu = max(1, int(1 / part.gpus)) if part.gpus < 1 else 1
    kinds = []
    start = 0
    for end in sorted({counts[name] for name in part.names}):
        members = [name for name in part.names if counts[name] >= end]
        processes = tuple(
            Process(roles=() if name == ENGINE else (name,), engine=name == ENGINE)
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


def _require_whole_bundles(parts: Sequence[Colocation], cluster: Cluster | None) -> None:
    """A bundle is on one machine, so machines have to hold whole ones."""
    if cluster is None:
        return
    for part in parts:
        if part.gpus > cluster.gpus_per_node:
            raise ConfigError(
                f"{' + '.join(part.names)} takes {part.gpus:g} GPUs of one machine; --gpus-per-node is "
                f"{cluster.gpus_per_node}"
            )
        if part.gpus > 1 and cluster.gpus_per_node % int(part.gpus):
            raise ConfigError(
                f"{' + '.join(part.names)} takes {part.gpus:g} GPUs a process, which does not divide the "
                f"{cluster.gpus_per_node} GPUs of a machine: some would stand idle. Choose a tensor_parallel_size that "
                "does."
            )


def _describe(placement: Placement) -> str:
    return ", ".join(f"{kind.count} for {kind.name}" for kind in placement.kinds)


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
