"""Everything that is predicted of a run: memory of each kind of GPU, seconds of each phase, and what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_cli.runs import PlannedRun
from rlhf_core import ConfigError

from . import assumptions as assumed
from .configs import Shapes
from .engine_memory import EngineMemory
from .engines import PlannedEngine, planned_engine
from .hardware import GIB, Gpu
from .phases import Step, phases_of, step_of
from .placement import Cluster, GpuKind, Placement, Process, check_engine, place
from .roles import PlannedRole, Workload, planned_role
from .setting import Phase, Setting
from .training_memory import Parts, RoleMemory, role_memory

REWARD_MODEL = "reward_model:reward_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """One process on one GPU."""

    name: str
    roles: Mapping[str, RoleMemory]
    parts: Parts
    """What stays of each role and of the engine, the largest moment of one role, and the allowances."""
    torch_peak: float
    """Of the trainer's tensors alone, as ``torch.cuda.max_memory_allocated`` counts them; 0 for vLLM."""

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """GPUs on which the same stands."""

    kind: GpuKind
    processes: tuple[ProcessMemory, ...]

    @property
    def total(self) -> float:
        """Bytes on the device, as the driver counts them."""
        return sum(process.total for process in self.processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of one configuration on one kind of GPU."""

    gpu: Gpu
    shapes: Shapes
    workload: Workload
    placement: Placement
    engine: PlannedEngine
    engine_memory: EngineMemory
    roles: Mapping[str, PlannedRole]
    gpus: tuple[GpuMemory, ...]
    phases: tuple[Phase, ...]
    """Empty where the KV cache does not hold a sequence."""
    step: Step
    problems: tuple[str, ...]
    """Why it does not fit; empty if it does."""
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return not self.problems


def predict(
    planned: PlannedRun,
    shapes: Shapes,
    gpu: Gpu,
    cluster: Cluster | None,
    workload: Workload,
) -> Prediction:
    """Predict a run.

    Raises:
        ConfigError: what cannot be on any GPU: numbers that do not divide, options that contradict each other.
    """
    notes = _notes_on_options(planned)
    policy = shapes["policy"]
    engine = planned_engine(planned, planned.max_length, notes)
    check_engine(policy, engine)
    placement = place(planned, engine, cluster, notes)
    roles = {
        name: planned_role(spec, shapes[name], planned, workload, placement.ranks[name], notes)
        for name, spec in planned.spec.roles.items()
    }
    served = engine.memory(policy, gpu)
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
    """Refuse lengths that the run would never make.

    Raises:
        ConfigError: names the flag.
    """
    if workload.length > longest:
        raise ConfigError(
            f"--prompt-tokens {workload.prompt_tokens} and --response-tokens {workload.response_tokens} together "
            f"exceed the longest sequence of the run, {longest} tokens"
        )


def _process_memory(
    process: Process, roles: Mapping[str, PlannedRole], served: EngineMemory
) -> ProcessMemory:
    """Sum what stays of all roles, the largest moment among them, the engine's part, and the allowances."""
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
    gpus: tuple[GpuMemory, ...], gpu: Gpu, engine: PlannedEngine, served: EngineMemory
) -> list[str]:
    problems = [
        f"{memory.kind.name}: needs {memory.total / GIB:.1f} GiB a GPU, {gpu.name} has {gpu.memory_gib:.1f}"
        for memory in gpus
        if memory.total > gpu.memory
    ]
    if engine.modeled and served.kv_tokens < engine.length:
        problems.append(
            f"engine: its KV cache has room for {served.kv_tokens} tokens, a sequence of this run may have "
            f"{engine.length}"
        )
    return problems


def _notes_on_options(planned: PlannedRun) -> list[str]:
    notes = []
    if planned.demands.supervised:
        notes.append("supervised rows are not modeled: neither their memory nor their time")
    if planned.run.rollout.environment is not None:
        notes.append(
            "turns of an environment are not modeled: one turn of --response-tokens, no time of the environment"
        )
    if planned.run.rollout.filters:
        notes.append("the time of prompts that replace filtered ones is not modeled")
    for selection in planned.selections.get("reward.use", ()):
        reward = selection.ref("rlhf_rewards")
        if reward.name == REWARD_MODEL and reward.options["device"] != "cpu":
            notes.append(
                f"the model of {selection.section} is not modeled: it needs 2 bytes a parameter, a CUDA context and "
                f"passes of {reward.options['batch_tokens']:,} tokens on a GPU, beside what is listed"
            )
    if planned.demands.greedy_rewards:
        notes.append("the greedy episode of each prompt is not modeled")
    return notes
