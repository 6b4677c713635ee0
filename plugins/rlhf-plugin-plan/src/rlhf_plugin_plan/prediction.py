"""Prediction of a run: memory of each kind of GPU, seconds of each phase, and the problems if the run does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_cli.runs import PlannedRun
from rlhf_core import ConfigError

from .machine import assumptions as assumed
from .machine.hardware import GIB, GpuSpec
from .memory.engine_memory import EngineMemory
from .memory.engines import PlannedEngine, planned_engine
from .memory.placement import (
    ClusterSize,
    GpuKind,
    PlannedPlacement,
    PlannedProcess,
    check_engine,
    place,
)
from .memory.roles import Adapted, PlannedRole, Workload, planned_role
from .memory.training_memory import Parts, RoleMemory, role_memory
from .model.configs import Shapes
from .seconds.phases import Step, phases_of, step_of
from .seconds.setting import Phase, Setting

REWARD_MODEL = "reward_model:reward_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Memory of one process on one GPU."""

    name: str
    """Names of the roles, and ``engine``."""
    roles: Mapping[str, RoleMemory]
    """Memory of each role of the process."""
    parts: Parts
    """Bytes of all roles' resident parts, the engine, the largest moment of one role, and the fixed allowances."""
    torch_peak: float
    """Bytes of the trainer's tensors alone, as ``torch.cuda.max_memory_allocated`` counts them; 0 for vLLM."""

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Memory of each GPU of one kind."""

    kind: GpuKind
    """The GPUs and their processes."""
    processes: tuple[ProcessMemory, ...]
    """Memory of each process on one of these GPUs."""

    @property
    def total(self) -> float:
        """Bytes in use on one of these GPUs, as the driver counts them."""
        return sum(process.total for process in self.processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction of one configuration on one model of GPU."""

    gpu: GpuSpec
    shapes: Shapes
    workload: Workload
    placement: PlannedPlacement
    engine: PlannedEngine
    engine_memory: EngineMemory
    roles: Mapping[str, PlannedRole]
    gpus: tuple[GpuMemory, ...]
    phases: tuple[Phase, ...]
    """Phases of a step; empty if the KV cache has no room for one sequence."""
    step: Step
    problems: tuple[str, ...]
    """Reasons why the run does not fit; empty if it fits."""
    notes: tuple[str, ...]
    """Options of the run that the prediction leaves out."""

    @property
    def fits(self) -> bool:
        """Whether the run fits."""
        return not self.problems


def predict(
    planned: PlannedRun,
    shapes: Shapes,
    gpu: GpuSpec,
    cluster: ClusterSize | None,
    workload: Workload,
    adapted: Adapted,
) -> Prediction:
    """Return the prediction of a run on GPUs of one model.

    Args:
        adapted: see ``memory.roles.Adapted``.

    Raises:
        ConfigError: the configuration cannot run on any GPU: numbers do not divide, or options contradict each other.
    """
    notes = _notes_on_options(planned)
    policy = shapes["policy"]
    engine = planned_engine(planned, planned.max_length, notes)
    check_engine(policy, engine)
    placement = place(planned, engine, cluster, notes)
    roles = {
        name: planned_role(
            spec, shapes[name], planned, workload, placement.ranks[name], adapted, notes
        )
        for name, spec in planned.spec.roles.items()
    }
    adapter = roles["policy"].role.adapter
    served = engine.memory(policy, gpu, adapter.factors if adapter else 0)
    gpus = tuple(
        GpuMemory(
            kind=kind,
            processes=tuple(_process_memory(process, roles, served) for process in kind.processes),
        )
        for kind in placement.kinds
    )
    setting = Setting(
        planned=planned,
        gpu=gpu,
        cluster=cluster,
        workload=workload,
        placement=placement,
        engine=engine,
        kv_tokens=served.kv_tokens,
        roles=roles,
    )
    phases = phases_of(setting) if served.kv_tokens >= workload.length else ()
    ahead = planned.run.rollout.max_staleness > 0 and not placement.colocated
    problems = _problems(gpus, gpu, engine, served)
    return Prediction(
        gpu=gpu,
        shapes=shapes,
        workload=workload,
        placement=placement,
        engine=engine,
        engine_memory=served,
        roles=roles,
        gpus=gpus,
        phases=phases,
        step=step_of(phases, overlaps=ahead),
        problems=tuple(problems),
        notes=tuple(notes),
    )


def require_sane(workload: Workload, longest: int) -> None:
    """Refuse lengths that no sequence of the run can have.

    Raises:
        ConfigError: the tokens of prompt and response exceed ``longest``, the longest sequence of the run.
    """
    if workload.length > longest:
        raise ConfigError(
            f"--prompt-tokens {workload.prompt_tokens} and --response-tokens {workload.response_tokens} together "
            f"exceed the longest sequence of the run, {longest} tokens"
        )


def _process_memory(
    process: PlannedProcess, roles: Mapping[str, PlannedRole], served: EngineMemory
) -> ProcessMemory:
    """Return the memory of one process.

    The parts are the resident parts of all its roles, the largest moment of one role, the engine, and the allowances.
    Moments do not add up, because the roles of a process work one after the other.
    """
    memories = {
        name: role_memory(roles[name].role, roles[name].sharing, roles[name].batch)
        for name in process.roles
    }
    parts: dict[str, float] = {
        f"{role}: {part}": size
        for role, memory in memories.items()
        for part, size in memory.resident.items()
    }
    if memories:
        largest = max(memories, key=lambda name: memories[name].transient_bytes)
        moment = memories[largest]
        parts |= {
            f"{largest}, {moment.moment}: {part}": size for part, size in moment.transient.items()
        }
    in_process = bool(process.roles)
    if process.engine:
        parts |= {f"engine: {part}": size for part, size in served.parts.items()}
    if "policy" in process.roles and not process.engine:
        parts |= {f"engine: {part}": size for part, size in served.in_trainer.items()}
    torch_peak = sum(parts.values()) if in_process or "CUDA context" not in served.parts else 0.0
    if torch_peak:
        parts["fragmentation"] = assumed.FRAGMENTATION * torch_peak
        parts["CUDA context"] = assumed.CONTEXT
    if any(roles[name].ranks > 1 for name in process.roles):
        parts["collectives"] = assumed.COLLECTIVES
    return ProcessMemory(
        name=" + ".join([*process.roles, *(["engine"] if process.engine else [])]),
        roles=memories,
        parts=parts,
        torch_peak=torch_peak,
    )


def _problems(
    gpus: tuple[GpuMemory, ...], gpu: GpuSpec, engine: PlannedEngine, served: EngineMemory
) -> list[str]:
    problems = [
        f"{memory.kind.name}: needs {memory.total / GIB:.1f} GiB a GPU, but {gpu.name} has {gpu.memory_gib:.1f}"
        for memory in gpus
        if memory.total > gpu.memory
    ]
    if engine.modeled and served.kv_tokens < engine.length:
        problems.append(
            f"engine: the KV cache has room for {served.kv_tokens} tokens, but a sequence of this run may have "
            f"{engine.length}"
        )
    return problems


def _notes_on_options(planned: PlannedRun) -> list[str]:
    notes = []
    if planned.demands.supervised:
        notes.append("supervised rows are not modeled: neither their memory nor their time")
    if planned.run.env.use:
        notes.append(
            "turns of an environment are not modeled: one turn of --response-tokens, no time of the environment"
        )
    if planned.run.rollout.filters:
        notes.append("the time of prompts that replace filtered ones is not modeled")
    for selection in planned.selections.get("reward.use", ()):
        reward = selection.ref("rlhf_rewards")
        if reward.name == REWARD_MODEL and reward.options["device"] != "cpu":
            notes.append(
                f"the model of {selection.section} is not modeled: beside the listed memory it needs 2 bytes a "
                f"parameter, a CUDA context and passes of {reward.options['batch_tokens']:,} tokens on a GPU"
            )
    if planned.demands.greedy_rewards:
        notes.append("the greedy episode of each prompt is not modeled")
    return notes
