"""The command as runs ask it: whether the GPUs of this machine hold a run without a sleeping engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlhf_cli.runs import PlannedRun, planned
from rlhf_config import Layer, resolve, visible_accelerators
from rlhf_core.contracts import Accelerator, MemoryOptions, SleepAdvice
from rlhf_core.plugins import Plugins

from .command import main, parser
from .fitting import fastest, options_of
from .machine.hardware import GIB, GPUS, GpuSpec
from .memory.sleep import TURNS
from .model.adapters import AdaptedModels
from .prediction import Prediction
from .run_prediction import predicted_run

PREDICTED = "train"
"""Command whose runs can be predicted."""
NAMED = {"H200": "h200", "H100": "h100", "A100": "a100-80", "L40S": "l40s"}
"""Part of a GPU's name in its driver -> its name in the table of GPUs."""
USABLE = 0.99
"""Share of the memory that the driver counts which programs can use, for a GPU that is in no table."""


class PlanCommand:
    """``rlhf plan``, and a memory planner."""

    def __call__(self, arguments: Sequence[str]) -> int:
        return main(arguments)

    def sleep_advice(self, config: Mapping[str, Any], plugins: Plugins) -> SleepAdvice | None:
        """See ``rlhf_core.contracts.MemoryPlanner``: of the first GPU of this machine."""
        gpu = gpu_here()
        return None if gpu is None else advice_on(gpu, config, plugins)

    def memory_options(
        self, command: str, config: Mapping[str, Any], given: Collection[str], plugins: Plugins
    ) -> MemoryOptions | None:
        """See ``rlhf_core.contracts.MemoryPlanner``: for the first GPU of this machine, as if all were alike."""
        gpu = gpu_here()
        if gpu is None or command != PREDICTED:
            return None
        return options_on(gpu, config, given, plugins)


def options_on(
    gpu: GpuSpec, config: Mapping[str, Any], given: Collection[str], plugins: Plugins
) -> MemoryOptions | None:
    """Return the fastest options about memory on GPUs of one model; None: nothing is open, or nothing fits.

    Raises:
        ConfigError: the run cannot be predicted.
    """
    models, own = AdaptedModels(plugins), parser().parse_args([])
    accelerators = (Accelerator(name=gpu.name, memory_gib=gpu.memory_gib),)
    base = Layer.of(config, "the run's configuration")

    def run_with(values: Mapping[str, Any]) -> PlannedRun:
        layers = [base, Layer.of_paths(values, "rlhf plan")]
        return planned(resolve(layers, plugins, accelerators))

    def predict(values: Mapping[str, Any]) -> Prediction:
        return predicted_run(run_with(values), models, gpu, None, own)

    found = fastest(run_with({}), given, predict)
    return None if found is None else options_of(*found)


def advice_on(gpu: GpuSpec, config: Mapping[str, Any], plugins: Plugins) -> SleepAdvice:
    """Return the advice for GPUs of one model.

    Raises:
        ConfigError: the run cannot be predicted.
    """
    run = planned(resolve([Layer.of(config, "the run's configuration")], plugins))
    prediction = predicted_run(run, AdaptedModels(plugins), gpu, None, parser().parse_args([]))
    fullest = max(prediction.gpus, key=lambda memory: memory.awake)
    on = prediction.sleep.on
    needs = (
        f"{fullest.awake / GIB:.1f} GiB are predicted where nothing sleeps, of {gpu.memory_gib:.1f}"
    )
    leaving = prediction.sleep.leaving
    with_sleep = f"; {TURNS[leaving]}, with {fullest.total / GIB:.1f}" if on else ""
    return SleepAdvice(sleeps=on, leaving=leaving, reason=needs + with_sleep)


def gpu_here() -> GpuSpec | None:
    """Return the first GPU that this process sees; None where there is none, or its memory is not known."""
    return next(map(gpu_of, visible_accelerators()), None)


def gpu_of(accelerator: Accelerator) -> GpuSpec | None:
    """Return a GPU by its driver's words; None if its memory is not known."""
    name, memory_gib = accelerator.name, accelerator.memory_gib
    if memory_gib is None:
        return None
    known = next((GPUS[ours] for theirs, ours in NAMED.items() if theirs in name), None)
    # A part of a name may stand for several sizes, and a GPU may be cut into parts.
    if known is not None and abs(known.memory_gib - memory_gib) < 0.05 * known.memory_gib:
        return known
    return replace(
        known or GPUS["h100"],
        name=name,
        memory_gib=USABLE * memory_gib,
        source="memory as its driver counts it",
    )


COMMAND = PlanCommand()
