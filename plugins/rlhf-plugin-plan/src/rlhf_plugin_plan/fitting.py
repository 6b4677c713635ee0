"""The options with which a step is fastest in the memory that there is: all combinations of those that nobody has set,
compared."""

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
from .memory.planned_roles import DEEPSPEED, FSDP, TORCH
from .memory.sleep import TURNS
from .prediction import Prediction

Values = Mapping[str, Any]
"""Options by path."""
Predict = Callable[[Values], Prediction]
"""Function that predicts the run with these values in place of its own."""

EQUAL = 0.01
"""Share of a step's seconds below which two choices are equally fast, and the one with more memory left is taken."""
TOKENS = "train.max_tokens_per_micro_batch"
SIZES = (*range(1024, 16_384, 1024), *range(16_384, 32_769, 4096))
"""Sizes of micro-batches that are tried, in tokens. Beyond the largest a GPU is busy, and more only costs memory."""
LONG = 50
"""Number of steps from which layers are compiled: it costs 15 to 25 s once, and gains about a third of training."""
COMPILE = "backend.deepspeed.compile"
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
    for further in _further(planned, given):
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
    lean = {path: _leanest(path, values) for path, values in open_ones.items()}
    leanest = _predicted({**lean, **further}, predict)
    if leanest is not None and not _fits(leanest):
        return None
    found, compared = [], 0
    for values in product(*open_ones.values()):
        one = _predicted({**dict(zip(open_ones, values, strict=True)), **further}, predict)
        compared += one is not None
        if one is not None and _fits(one):
            found.append(one)
    if not found:
        return None
    limit = min(one.seconds for one in found) * (1 + EQUAL)
    return min((one for one in found if one.seconds <= limit), key=lambda one: one.peak), compared


def _predicted(values: Values, predict: Predict) -> Fitted | None:
    """Return the combination with its prediction; None: these values contradict what is given."""
    try:
        return Fitted(values=values, prediction=predict(values))
    except ConfigError:
        return None


def _fits(one: Fitted) -> bool:
    if not one.prediction.fits or not one.prediction.phases:
        return False
    return one.peak <= (1 - assumed.SPARE) * one.prediction.gpu.memory


def _leanest(path: str, values: Sequence[Any]) -> Any:
    """Return the value with which the run needs least memory: flags save some when they are on."""
    return min(values) if path in (TOKENS, CACHE) else max(values)


def options_of(fitted: Fitted, compared: int) -> MemoryOptions:
    """Return the values for the run, and the line that says why."""
    prediction = fitted.prediction
    words = [_words(path, value) for path, value in fitted.values.items()]
    sleep = prediction.sleep
    words.append(TURNS[sleep.leaving] if sleep.on else "nothing sleeps")
    return MemoryOptions(
        values=fitted.values,
        reason=f"memory: {', '.join(words)}: {fitted.peak / GIB:.1f} of {prediction.gpu.memory_gib:.1f} GiB and "
        f"{fitted.seconds:.1f} s a step are predicted if every row is as long as allowed, the fastest that fits of "
        f"{compared} choices",
    )


def _words(path: str, value: Any) -> str:
    if path == TOKENS:
        return f"micro-batches of {value:,} tokens"
    if path == CACHE:
        return f"KV cache of {value:g} GiB"
    return f"{path.rpartition('.')[2]} {str(value).lower()}"


def _further(planned: PlannedRun, given: Collection[str]) -> Iterator[Values]:
    """Yield what is changed beside the choices, only where nothing fits without: it costs more than it can gain."""
    yield {}
    backend = planned.spec.backend
    if backend.name != DEEPSPEED or not 0 < backend.options["zero_stage"] < 3:
        return
    offload = {"backend.deepspeed.offload_optimizer": True}
    whole: dict[str, Any] = {"backend.deepspeed.zero_stage": 3}
    if COMPILE not in given:
        whole[COMPILE] = False
    several = planned.runtime.options.get("gpus") or max(
        planned.runtime.options.get("ranks", {}).values(), default=1
    )
    if several > 1:
        yield whole
    yield offload
    if several > 1:
        yield whole | offload


def _choices(planned: PlannedRun) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield each option about memory and speed that the run has, and the values that are tried."""
    backend = planned.spec.backend
    section = {TORCH: "torch", DEEPSPEED: "deepspeed", FSDP: "fsdp"}.get(backend.name)
    if section is None:
        return
    options = backend.options
    if not options.get("deep_compile"):
        if _is_long(planned) and options.get("zero_stage") != 3:
            yield f"backend.{section}.compile", (True,)
        yield f"backend.{section}.gradient_checkpointing", (False, True)
    least = 1024 * math.ceil(planned.max_length / 1024)
    yield TOKENS, (least, *(size for size in SIZES if size > least))
    engine = planned.spec.engine
    if engine is not None and engine.name == VLLM:
        yield CACHE, ()


def _is_long(planned: PlannedRun) -> bool:
    steps = planned.run.train.steps
    return steps is None or steps >= LONG


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
