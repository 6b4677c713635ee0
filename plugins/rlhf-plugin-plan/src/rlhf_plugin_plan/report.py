"""Report of a prediction, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .machine.hardware import GIB
from .memory.gpu_memory import GpuMemory
from .memory.sleep import TURNS
from .prediction import Prediction
from .remedies import Remedy
from .seconds import measured
from .seconds.schedules import described

SMALLEST = 0.05 * GIB
"""Size in bytes below which the parts of a process share one line of the report."""


def render(prediction: Prediction, remedies: Sequence[Remedy]) -> str:
    """Return the report as text."""
    lines = [*_head(prediction), ""]
    for memory in prediction.gpus:
        lines += [*_memory(memory, prediction), ""]
    lines += _sleep(prediction)
    if prediction.phases:
        lines += [*_times(prediction), ""]
    if prediction.schedules:
        lines += [*described(prediction.schedules), ""]
    for note in prediction.notes:
        lines.append(f"note: {note}")
    lines += _verdict(prediction, remedies)
    return "\n".join(lines)


def as_json(prediction: Prediction, remedies: Sequence[Remedy]) -> dict[str, Any]:
    """Return the report as plain values for JSON; memory in GiB, times in seconds."""
    step = prediction.step
    return {
        "fits": prediction.fits,
        "problems": list(prediction.problems),
        "remedies": [
            {"flags": list(r.flags), "fits": r.fits, "gain_gib": r.gain / GIB} for r in remedies
        ],
        "gpu": {"name": prediction.gpu.name, "memory_gib": prediction.gpu.memory_gib},
        "num_gpus": prediction.placement.gpus,
        "parameters": {name: shape.parameters for name, shape in prediction.shapes.items()},
        "adapters": {
            name: {"name": adapter.name, "trained_parameters": adapter.trained}
            for name, role in prediction.roles.items()
            if (adapter := role.role.adapter) is not None
        },
        "engine": {
            "num": prediction.placement.engines,
            "kv_tokens": prediction.engine_memory.kv_tokens,
            "peak_gib": prediction.engine_memory.peak_bytes / GIB,
        },
        "gpus": [_gpu_json(memory) for memory in prediction.gpus],
        "sleep": {
            "option": prediction.sleep.option,
            "on": prediction.sleep.on,
            "leaving": prediction.sleep.leaving,
            "seconds": prediction.sleep.seconds,
        },
        "phases": [
            {
                "name": phase.name,
                "limit_s": phase.limit_s,
                "measured_s": phase.measured_s,
                "bound": phase.bound,
            }
            for phase in prediction.phases
        ],
        "step_s": {
            "limit": step.limit_s,
            "at_measured_rates": step.rates_s,
            "overlaps": step.overlaps,
        },
        "schedules": [
            {
                "flags": list(schedule.flags),
                "generation_s": schedule.generation_s,
                "rest_s": schedule.rest_s,
                "step_s": schedule.step_s,
            }
            for schedule in prediction.schedules
        ],
        "tokens_per_step": prediction.workload.sequences * prediction.workload.length,
        "notes": list(prediction.notes),
        "rates": measured.load().source,
    }


def _gpu_json(memory: GpuMemory) -> dict[str, Any]:
    return {
        "name": memory.kind.name,
        "count": memory.kind.count,
        "peak_gib": memory.total / GIB,
        "phases_gib": None
        if memory.peaks is None
        else {
            phase: {"asleep": memory.peaks.asleep[phase] / GIB, "awake": awake / GIB}
            for phase, awake in memory.peaks.awake.items()
        },
        "processes": [
            {
                "name": process.name,
                "peak_gib": process.total / GIB,
                "torch_peak_gib": process.torch_peak / GIB,
                "roles": {
                    name: {
                        "resident_gib": role.resident_bytes / GIB,
                        "peak_gib": role.peak_bytes / GIB,
                        "moment": role.moment,
                    }
                    for name, role in process.roles.items()
                },
                "parts_gib": {name: size / GIB for name, size in process.parts.items()},
            }
            for process in memory.processes
        ],
    }


def _head(prediction: Prediction) -> Iterator[str]:
    work, gpu = prediction.workload, prediction.gpu
    known = "each" if work.known_lengths else "at most"
    known = "on average" if work.spread else known
    yield f"{prediction.placement.gpus} x {gpu.name}, {gpu.memory_gib:.1f} GiB ({gpu.source})"
    for name, shape in prediction.shapes.items():
        role = prediction.roles[name]
        together = f" ({role.parts} share every matrix)" if role.parts > 1 else ""
        together = f" ({role.slices} share every sequence)" if role.slices > 1 else together
        adapter = role.role.adapter
        trains = f", {adapter.trained:,} trained ({adapter.name})" if adapter else ""
        yield (
            f"{name}: {shape.parameters:,} parameters{trains}, "
            f"{role.ranks} rank{'s' if role.ranks > 1 else ''}{together}, micro-batches of {role.batch.tokens:,} tokens"
        )
    yield (
        f"one step: {work.prompts} prompts x {work.samples} samples, {known} {work.prompt_tokens} + "
        f"{work.response_tokens} tokens"
    )
    if prediction.engine.modeled:
        tokens = prediction.engine_memory.kv_tokens
        yield (
            f"engines: {prediction.placement.engines}, GPUs of each: {prediction.engine.gpus}, KV cache of {tokens:,} "
            f"tokens = {tokens // work.length:,} sequences at once"
        )


def _memory(memory: GpuMemory, prediction: Prediction) -> Iterator[str]:
    yield (
        f"{memory.kind.count} GPU: {memory.kind.name}: {memory.total / GIB:.1f} of "
        f"{prediction.gpu.memory_gib:.1f} GiB"
    )
    for process in memory.processes:
        yield f"  process {process.name}: {process.total / GIB:.1f} GiB"
        small = 0.0
        for name, size in process.parts.items():
            if size < SMALLEST:
                small += size
            else:
                yield f"    {size / GIB:8.2f}  {name}"
        if small:
            yield f"    {small / GIB:8.2f}  less than 0.05 each"


def _sleep(prediction: Prediction) -> Iterator[str]:
    """Yield the peak of each phase with and without sleep, if the run could sleep, and what sleep costs."""
    sleep = prediction.sleep
    for memory in prediction.gpus:
        peaks = memory.peaks
        if peaks is None or (sleep.option == "never" and prediction.fits):
            continue
        yield f"{'peak of a GPU, GiB':24}{'asleep in turn':>16}{'nothing sleeps':>16}"
        for phase, asleep in peaks.asleep.items():
            yield f"{phase:24}{asleep / GIB:>16.1f}{peaks.awake[phase] / GIB:>16.1f}"
        host = prediction.gpu.host_gb_s
        yield (
            f"sleep would move {peaks.moved / GIB:.1f} GiB a step, both ways counted, {peaks.beside / GIB:.1f} of them "
            f"beside passes: {sleep.seconds:.2f} s at {host:g} GB/s to host memory (assumed)"
        )
        yield f"runtime.sleep is {sleep.option}: {TURNS[sleep.leaving] if sleep.on else 'nothing sleeps'}"
        yield ""


def _times(prediction: Prediction) -> Iterator[str]:
    yield f"{'seconds of a step':24}{'limit':>10}{'measured rates':>16}  bound by"
    for phase in prediction.phases:
        shown = "-" if phase.measured_s is None else f"{phase.measured_s:.3f}"
        yield f"{phase.name:24}{phase.limit_s:>10.3f}{shown:>16}  {phase.bound}"
    step = prediction.step
    tokens = prediction.workload.sequences * prediction.workload.length
    name = "slower side and sync" if step.overlaps else "sum"
    why = "; generation and training overlap" if step.overlaps else ""
    yield (
        f"{name:24}{step.limit_s:>10.3f}{step.rates_s:>16.3f}  where nothing was measured, the limit counts{why}"
    )
    yield f"{'tokens per second':24}{tokens / step.limit_s:>10,.0f}{tokens / step.rates_s:>16,.0f}"
    yield f"rates: {measured.load().source}"


def _verdict(prediction: Prediction, remedies: Sequence[Remedy]) -> Iterator[str]:
    if prediction.fits:
        yield "It fits."
        return
    for problem in prediction.problems:
        yield f"It does not fit. {problem}"
    if not remedies:
        yield "No change that this command knows lowers the memory: use more or larger GPUs (docs/plan.md)."
    for remedy in remedies[:6]:
        yield f"  {remedy.describe()}"
