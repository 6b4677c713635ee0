"""The options about memory with which a step is fastest: all combinations of those that nobody has set, compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from rlhf_cli.runs import PlannedRun
from rlhf_core import ConfigError
from rlhf_core.contracts import MemoryOptions

from .machine import assumptions as assumed
from .machine.hardware import GIB
from .memory.engines import VLLM
from .memory.roles import DEEPSPEED, FSDP, TORCH
from .memory.sleep import TURNS
from .prediction import Prediction

Values = Mapping[str, Any]
"""Options by path."""
Predict = Callable[[Values], Prediction]
"""Function that predicts the run with these values in place of its own."""

EQUAL = 0.01
"""Share of a step's seconds below which two choices are equally fast, and the one with more memory left is taken."""
TOKENS = "train.max_tokens_per_micro_batch"
LARGEST = 16_384
"""Largest micro-batch that is tried, in tokens: a GPU is busy with far fewer, and more only costs memory."""
STEP = 1024
"""Tokens between two sizes of micro-batches that are tried."""
CACHE = "engine.vllm.kv_cache_gib"
SPARE_CACHE = 1.05
"""Size of a KV cache by what all sequences need: blocks at their ends are not full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A combination of options and its prediction."""

    values: Values
    prediction: Prediction

    @property
    def peak(self) -> float:
        """Bytes on the fullest GPU."""
        return max(memory.total for memory in self.prediction.gpus)

    @property
    def seconds(self) -> float:
        """Seconds of a step at measured rates."""
        return self.prediction.step.rates_s


def fastest(
    planned: PlannedRun, given: Collection[str], predict: Predict
) -> tuple[Fitted, int] | None:
    """Return the combination with which a step is fastest among those that fit, and how many were compared; None if
    everything is given, or nothing fits.

    Args:
        given: paths of options that somebody has set, which stay.
    """
    for further in _further(planned):
        if further.keys() & set(given):
            continue
        found = _fastest(planned, given, predict, further)
        if found is not None:
            return found if found[0].values else None
    return None


def _fastest(
    planned: PlannedRun, given: Collection[str], predict: Predict, further: Values
) -> tuple[Fitted, int] | None:
    """Return the fastest combination that fits with ``further``, and how many were compared."""
    open_ones = {path: values for path, values in _choices(planned) if path not in given}
    if {CACHE, "engine.vllm.memory_share"} & set(given):
        open_ones.pop(CACHE, None)
    elif CACHE in open_ones:
        open_ones[CACHE] = _cache_sizes(predict({CACHE: 1.0}))
    found, compared = [], 0
    for values in product(*open_ones.values()):
        named = {**further, **dict(zip(open_ones, values, strict=True))}
        try:
            one = Fitted(values=named, prediction=predict(named))
        except ConfigError:
            continue  # these values contradict what is given
        compared += 1
        usable = (1 - assumed.SPARE) * one.prediction.gpu.memory
        if one.prediction.fits and one.prediction.phases and one.peak <= usable:
            found.append(one)
    if not found:
        return None
    limit = min(one.seconds for one in found) * (1 + EQUAL)
    return min((one for one in found if one.seconds <= limit), key=lambda one: one.peak), compared


def options_of(fitted: Fitted, compared: int) -> MemoryOptions:
    """Return the values for the run, and the line that says why."""
    prediction = fitted.prediction
    words = [_words(path, value) for path, value in fitted.values.items()]
    sleep = prediction.sleep
    words.append(TURNS[sleep.leaving] if sleep.on else "nothing sleeps")
    return MemoryOptions(
        values=fitted.values,
        reason=f"memory: {', '.join(words)}: {fitted.peak / GIB:.1f} of {prediction.gpu.memory_gib:.1f} GiB and "
        f"{fitted.seconds:.1f} s a step are predicted, the fastest that fits of {compared} choices",
    )


def _words(path: str, value: Any) -> str:
    if path == TOKENS:
        return f"micro-batches of {value:,} tokens"
    if path == CACHE:
        return f"KV cache of {value:g} GiB"
    return f"{path.rpartition('.')[2]} {str(value).lower()}"


def _further(planned: PlannedRun) -> Iterator[Values]:
    """Yield what is changed beside the choices, only where nothing fits without: it costs more than it can gain."""
    yield {}
    backend = planned.spec.backend
    if backend.name != DEEPSPEED or not 0 < backend.options["zero_stage"] < 3:
        return
    stage, offload = "backend.deepspeed.zero_stage", "backend.deepspeed.offload_optimizer"
    several = planned.runtime.options.get("gpus") or max(
        planned.runtime.options.get("ranks", {}).values(), default=1
    )
    if several > 1 and not backend.options["compile"]:
        yield {stage: 3}
    yield {offload: True}
    if several > 1 and not backend.options["compile"]:
        yield {stage: 3, offload: True}


def _choices(planned: PlannedRun) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield each option about memory that the run has, and the values that are tried."""
    backend = planned.spec.backend
    section = {TORCH: "torch", DEEPSPEED: "deepspeed", FSDP: "fsdp"}.get(backend.name)
    if section is None:
        return
    options = backend.options
    if not options.get("deep_compile"):
        yield f"backend.{section}.gradient_checkpointing", (False, True)
    least = STEP * math.ceil(planned.max_length / STEP)
    sizes = range(least, max(LARGEST, least) + 1, STEP)
    yield TOKENS, tuple(sizes)
    engine = planned.spec.engine
    if engine is not None and engine.name == VLLM:
        yield CACHE, ()


def _cache_sizes(prediction: Prediction) -> tuple[float, ...]:
    """Return sizes of a KV cache in GiB: for all sequences of an engine at once, for a half and for a quarter.

    Args:
        prediction: of the run with any size that is set.
    """
    served, work = prediction.engine_memory, prediction.workload
    a_token = served.parts["KV cache"] / served.kv_tokens
    at_once = min(
        math.ceil(work.sequences / prediction.placement.engines), prediction.engine.max_sequences
    )
    whole = at_once * prediction.engine.length * a_token * SPARE_CACHE / GIB
    one = prediction.engine.length * a_token / GIB
    sizes = {math.ceil(10 * max(whole / parts, one)) / 10 for parts in (1, 2, 4)}
    return tuple(sorted(sizes))
