"""Remedies for a run that does not fit: changes of the configuration, each with a prediction of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_cli.runs import PlannedRun
from rlhf_core import ConfigError

from .machine.hardware import GIB
from .memory.engines import VLLM
from .memory.planned_roles import DEEPSPEED, FSDP, TORCH
from .prediction import ASLEEP, Prediction

Flags = tuple[str, ...]
"""Names and values of flags in turn."""
Again = Callable[[Sequence[str]], Prediction]
"""Function that predicts the same run with the given flags in place of the run's flags of the same names."""

SMALLEST = 0.05 * GIB
"""Smallest gain of a remedy, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Flags and their effect on the run."""

    flags: Flags
    fits: bool
    gain: float
    """Bytes less on the fullest GPU; negative if a larger KV cache makes the run fit."""

    def describe(self) -> str:
        """Return the line of the report."""
        effect = "then it fits" if self.fits else f"{self.gain / GIB:.1f} GiB less, not enough"
        return f"{' '.join(self.flags)}: {effect}"


class Sort(NamedTuple):
    """Changes of one option."""

    changes: Sequence[Flags]
    changes_learning: bool = False
    """Whether the changes decide what is learned: then none of them is the mildest, and others come before them."""


def remedies(
    planned: PlannedRun, before: Prediction, again: Again, adapters: Sequence[str]
) -> list[Remedy]:
    """Return changes that help, at most one of each sort; changes that are enough alone come first.

    From each sort the mildest change that is enough is taken, or, if none is enough, the change with the largest gain;
    of adapters the one with the largest gain in any case. If no change is enough alone, sorts are joined one after the
    other, and the first entry is the first joined change that is enough, if there is one.

    Args:
        adapters: names of the model adapters that are installed.
    """
    sorts = list(_sorts(planned, adapters))
    found = [(sort, best) for sort in sorts if (best := _best(sort, (), before, again))]
    found.sort(key=lambda each: (not each[1].fits, each[0].changes_learning, -each[1].gain))
    alone = [remedy for _, remedy in found]
    if any(remedy.fits for remedy in alone):
        return alone
    joined: Remedy | None = None
    for sort in sorts:
        flags = joined.flags if joined is not None else ()
        better = _best(sort, flags, before, again)
        if better is not None and (joined is None or better.fits or better.gain > joined.gain):
            joined = better
        if joined is not None and joined.fits:
            return [joined, *alone]
    return alone


def _best(sort: Sort, with_: Flags, before: Prediction, again: Again) -> Remedy | None:
    tried = []
    for flags in sort.changes:
        remedy = _tried((*with_, *flags), before, again)
        if remedy is not None and remedy.fits and not sort.changes_learning:
            return remedy
        tried += [remedy] if remedy is not None else []
    return max(tried, key=lambda remedy: (remedy.fits, remedy.gain), default=None)


def _tried(flags: Flags, before: Prediction, again: Again) -> Remedy | None:
    try:
        after = again(flags)
    except ConfigError:
        return None  # The run cannot make this change, so it is no remedy.
    gain = _fullest(before) - _fullest(after)
    starved = after.engine_memory.kv_tokens < after.engine.length
    if not after.fits and (gain < SMALLEST or starved):
        return None
    return Remedy(flags=flags, fits=after.fits, gain=gain)


def _sorts(planned: PlannedRun, adapters: Sequence[str]) -> Iterator[Sort]:
    """Yield the sorts of changes; adapters, which change what is learned, are the last."""
    if planned.run.runtime.sleep == "never" and not planned.run.rollout.max_staleness:
        yield Sort([("--runtime.sleep", value) for value in ASLEEP])
    yield from map(Sort, _without_adapters(planned))
    spec = planned.spec
    for role, section in (("policy", "actor"), ("critic", "critic")):
        if role in spec.roles and spec.roles[role].adapter is None:
            flags = [(f"--{section}.adapter", name) for name in adapters]
            yield Sort(flags, changes_learning=True)


def _without_adapters(planned: PlannedRun) -> Iterator[list[Flags]]:
    """Yield a list of changes for each sort of change, the mildest change first."""
    spec, run = planned.spec, planned.run
    backend = {TORCH: "torch", DEEPSPEED: "deepspeed", FSDP: "fsdp"}.get(spec.backend.name, "")
    options = spec.backend.options
    if backend and not options["gradient_checkpointing"]:
        yield [(f"--backend.{backend}.gradient_checkpointing", "true")]
    budget = run.train.max_tokens_per_micro_batch
    yield [
        ("--train.max_tokens_per_micro_batch", str(budget // divisor))
        for divisor in (2, 4, 8, 16)
        if budget // divisor >= planned.max_length
    ]
    if backend == "deepspeed":
        stages = range(options["zero_stage"] + 1, 4)
        yield [("--backend.deepspeed.zero_stage", str(stage)) for stage in stages]
    yield _other_shares(planned)
    if backend == "deepspeed" and options["zero_stage"] and not options["offload_optimizer"]:
        yield [("--backend.deepspeed.offload_optimizer", "true")]
    if run.model.dtype == "float32":
        yield [("--model.dtype", "bfloat16")]
    if planned.runtime.name == "ray:ray" and backend in ("deepspeed", "fsdp"):
        options = planned.runtime.options
        ranks = options["ranks"].get("policy", options["gpus"] or 1)
        yield [("--runtime.ray.ranks.policy", str(times * ranks)) for times in (2, 4)]


def _other_shares(planned: PlannedRun) -> list[Flags]:
    """Return flags for other values of ``memory_share``, the nearest value first."""
    engine = planned.spec.engine
    assert engine is not None
    if engine.name != VLLM or engine.options["kv_cache_gib"] is not None:
        return []
    now = engine.options["memory_share"]
    others = [tenths / 20 for tenths in range(2, 19) if abs(tenths / 20 - now) > 0.01]
    nearest = sorted(others, key=lambda share: abs(share - now))
    return [("--engine.vllm.memory_share", f"{share:g}") for share in nearest]


def _fullest(prediction: Prediction) -> float:
    return max((gpu.total for gpu in prediction.gpus), default=0.0)
