"""Prediction of a run: memory of each kind of GPU, seconds of each phase, and the problems if the run does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlhf_cli.runs import PlannedRun
from rlhf_core import ConfigError
from rlhf_core.contracts import Leaving

from .machine import assumptions as assumed
from .machine.hardware import GIB, GpuSpec
from .memory.engine_memory import EngineMemory
from .memory.engines import PlannedEngine, planned_engine
from .memory.gpu_memory import GpuMemory, ProcessMemory
from .memory.placement import (
    ClusterSize,
    GpuKind,
    PlannedPlacement,
    PlannedProcess,
    check_engine,
    place,
)
from .memory.planned_roles import Adapted, PlannedRole, planned_role
from .memory.sleep import ProcessShares, SleepPeaks, sleep_peaks
from .memory.training_memory import role_memory
from .memory.workload import Workload
from .model.configs import Shapes
from .seconds.phases import Step, first_passes_s, moves_phase, phases_of, step_of
from .seconds.schedules import Schedule, schedules
from .seconds.setting import Phase, Setting

ASLEEP: Mapping[str, Leaving] = {"engine": "nothing", "state": "state", "always": "all"}
"""Values of ``runtime.sleep`` with which the engine sleeps, from the one that moves least, and what leaves."""
REWARD_MODEL = "reward_model:reward_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepChoice:
    """Decision of ``runtime.sleep``."""

    option: str
    """Value of the option."""
    on: bool
    """Whether the engine sleeps while roles compute."""
    leaving: Leaving
    """Parts of the roles that leave while the engine generates, if it does."""
    seconds: float
    """Seconds of a step in which nothing else is done while bytes move to host memory and back, if it does."""
    beside_s: float
    """Seconds in which bytes come back beside passes: the first optimizer step waits for what takes longer."""


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
    sleep: SleepChoice
    """Option ``runtime.sleep``, and what it comes to."""
    phases: tuple[Phase, ...]
    """Phases of a step; empty if the KV cache has no room for one sequence."""
    step: Step
    schedules: tuple[Schedule, ...]
    """Orders of generation and training, the fastest first; empty where all responses have one length."""
    problems: tuple[str, ...]
    """Reasons why the run does not fit; empty if it fits."""
    notes: tuple[str, ...]
    """Options of the run that the prediction leaves out."""

    @property
    def fits(self) -> bool:
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
        adapted: see ``memory.planned_roles.Adapted``.

    Raises:
        ConfigError: the configuration cannot run on any GPU: numbers do not divide, or options contradict each other.
    """
    notes = _notes_on_options(planned)
    policy = shapes["policy"]
    engine = planned_engine(planned, notes)
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
    gpus, sleep = with_sleep(
        tuple(_gpu_memory(kind, roles, served, engine) for kind in placement.kinds), planned, gpu
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
    passes_s = first_passes_s(phases, planned.demands.updates_per_step)
    sleep = replace(sleep, seconds=sleep.seconds + max(0.0, sleep.beside_s - passes_s))
    if sleep.on and phases:
        phases = (*phases, moves_phase(sleep.seconds))
    ahead = planned.run.rollout.max_staleness > 0 and not placement.colocated
    if engine.beside_training(policy):
        notes.append(
            "engine.embedded.overlap: generation and training of one GPU at once are not modeled; the step's seconds "
            "are those of one after the other"
        )
    problems = _problems(gpus, gpu, engine, served, sleep)
    return Prediction(
        gpu=gpu,
        shapes=shapes,
        workload=workload,
        placement=placement,
        engine=engine,
        engine_memory=served,
        roles=roles,
        gpus=gpus,
        sleep=sleep,
        phases=phases,
        step=step_of(phases, overlaps=ahead),
        schedules=schedules(setting, phases, sleeps=sleep.on),
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
            f"exceed the longest sequence of the run, {longest} tokens. Ask about fewer, or set --rollout.max_length "
            f"{workload.length}",
            code="plan/too-long",
        )


def with_sleep(
    gpus: tuple[GpuMemory, ...], planned: PlannedRun, gpu: GpuSpec
) -> tuple[tuple[GpuMemory, ...], SleepChoice]:
    """Return the GPUs with the decision of ``runtime.sleep``: ``auto`` sleeps where the run fits in no other way, and
    then moves the least with which it fits.

    Raises:
        ConfigError: the engine has to sleep, and no role shares a GPU with an engine.
    """
    option = planned.run.runtime.sleep
    shared = [memory for memory in gpus if memory.choices]
    if option in ASLEEP and not shared:
        raise ConfigError(
            f"runtime.sleep is {option}, but no role shares a GPU with an engine: its memory would be given back to "
            "nobody. Leave --runtime.sleep out, or let them share: leave --runtime.ray.colocate out.",
            code="config/sleep-without-sharing",
        )
    possible = bool(shared) and not planned.run.rollout.max_staleness
    needed = any(memory.awake > (1 - assumed.SPARE) * gpu.memory for memory in shared)
    on = option in ASLEEP or (option == "auto" and possible and needed)
    leaving = ASLEEP[option] if option in ASLEEP else _least_that_fits(shared, gpu)
    peaks = [memory.choices[leaving] for memory in shared]
    rate = 1e9 * gpu.host_gb_s
    choice = SleepChoice(
        option=option,
        on=on,
        leaving=leaving,
        seconds=max((each.moved - each.beside for each in peaks), default=0.0) / rate,
        beside_s=max((each.beside for each in peaks), default=0.0) / rate,
    )
    return tuple(replace(memory, sleeps=on, leaving=leaving) for memory in gpus), choice


def _least_that_fits(shared: Sequence[GpuMemory], gpu: GpuSpec) -> Leaving:
    """Return the least that has to leave so that some memory is to spare; if nothing is enough, that of least need."""

    def peak(leaving: Leaving) -> float:
        peaks = (max(memory.choices[leaving].asleep.values()) for memory in shared)
        return max(peaks, default=0.0)

    usable = (1 - assumed.SPARE) * gpu.memory
    enough = [leaving for leaving in ASLEEP.values() if peak(leaving) <= usable]
    return enough[0] if enough else min(ASLEEP.values(), key=peak)


def _gpu_memory(
    kind: GpuKind, roles: Mapping[str, PlannedRole], served: EngineMemory, engine: PlannedEngine
) -> GpuMemory:
    processes = tuple(_process_memory(process, roles, served) for process in kind.processes)
    shares = any(process.engine for process in kind.processes)
    shares = shares and any(process.roles for process in kind.processes)
    choices: dict[Leaving, SleepPeaks] = {}
    if shares and engine.modeled:
        choices = {
            leaving: sleep_peaks(
                [_shares(process) for process in processes],
                shares_weights=engine.embedded and not engine.copies_weights,
                keeps_in_host=engine.vllm is None or engine.vllm.sleep_level == 1,
                leaving=leaving,
            )
            for leaving in ASLEEP.values()
        }
    return GpuMemory(kind=kind, processes=processes, choices=choices)


def _shares(process: ProcessMemory) -> ProcessShares:
    """Return the parts of a process by what becomes of them when engine and roles take turns."""
    engine = {
        name.removeprefix("engine: "): size
        for name, size in process.parts.items()
        if name.startswith("engine: ")
    }
    weights = sum(memory.resident.get("weights", 0.0) for memory in process.roles.values())
    resident = sum(memory.resident_bytes for memory in process.roles.values())
    emptied = sum(memory.resident.get("gradients", 0.0) for memory in process.roles.values())
    work = max((memory.transient_bytes for memory in process.roles.values()), default=0.0)
    fixed = sum(process.parts.get(name, 0.0) for name in ("CUDA context", "collectives"))
    return ProcessShares(
        fixed=fixed,
        weights=weights,
        state=resident - weights,
        work=work,
        engine=engine,
        is_engine=not process.roles,
        emptied=emptied,
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
    # Torch counts what graphs hold as reserved, and as allocated only while they are captured.
    if torch_peak:
        torch_peak -= parts.get("engine: CUDA graphs", 0.0)
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
    gpus: tuple[GpuMemory, ...],
    gpu: GpuSpec,
    engine: PlannedEngine,
    served: EngineMemory,
    sleep: SleepChoice,
) -> list[str]:
    problems = []
    for memory in gpus:
        if memory.total <= gpu.memory:
            continue
        also = ""
        if sleep.option == "never" and memory.peaks is not None:
            asleep = max(memory.peaks.asleep.values()) / GIB
            with_it = next(name for name, leaving in ASLEEP.items() if leaving == sleep.leaving)
            also = f"; runtime.sleep is never, and with {with_it} it needs {asleep:.1f}"
        problems.append(
            f"{memory.kind.name}: needs {memory.total / GIB:.1f} GiB a GPU, but {gpu.name} has "
            f"{gpu.memory_gib:.1f}{also}"
        )
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
        if reward.name != REWARD_MODEL or reward.options["device"] == "cpu":
            continue
        needed = (
            "beside the base that roles hold it needs its factors"
            if reward.options["base"] == "shared"
            else "beside the listed memory it needs 2 bytes a parameter, a CUDA context"
        )
        notes.append(
            f"the model of {selection.section} is not modeled: {needed} and passes of "
            f"{reward.options['batch_tokens']:,} tokens on a GPU"
        )
    if planned.demands.greedy_rewards:
        notes.append("the greedy episode of each prompt is not modeled")
    actor = planned.run.actor
    if actor.freeze_language_model or actor.freeze_projector is not None:
        notes.append(
            "actor.freeze_language_model and actor.freeze_projector not modeled: planned as if all but a frozen visual "
            "encoder were trained"
        )
    return notes
