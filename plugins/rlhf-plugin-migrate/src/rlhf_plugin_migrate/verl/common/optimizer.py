"""Rules of an optimizer, its schedule and its warm-up."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_SCHEDULES = {
    "constant": "constant",
    "cosine": "cosine",
    "linear": "linear",
    "wsd": "wsd",
    "WSD": "wsd",
}
_OPTIMIZERS = {
    "adamw": "adam",
    "adam": "adam",
    "_adamw": "adam",
    "fusedadam": "adam",
    "adamw8bit": "adam8bit",
}


def set_optimizer(source: SourceOptions, out: Outcome, prefix: str, role: str) -> None:
    """Set a role's optimizer. verl decays all parameters, ours matrices alone.

    Args:
        prefix: beginning of the keys, without the dot.
        role: section of the role here, such as ``actor``.
    """
    kind = source.text(f"{prefix}.optimizer")
    name = _OPTIMIZERS.get(kind.lower(), "adam")
    out.set(f"{role}.optim", name, f"{prefix}.optimizer", f"{prefix}.optimizer_impl")
    if kind.lower() not in _OPTIMIZERS:
        out.missing(f"{prefix}.optimizer", f"{kind} is no optimizer here; adam is taken")
    for option in ("lr", "betas", "eps", "weight_decay"):
        key = f"{prefix}.{option}"
        out.set(f"{role}.{name}.{option}", source.value(key), key)
    if source.number(f"{prefix}.weight_decay"):
        out.differs(
            f"{prefix}.weight_decay", "matrices are decayed; verl decays biases and norms too"
        )
    norm = source.number(f"{prefix}.clip_grad")
    out.set(f"{role}.max_norm", norm if norm else "none", f"{prefix}.clip_grad")


def set_schedule(
    source: SourceOptions, out: Outcome, prefix: str, role: str, steps: int | None
) -> None:
    """Set the schedule of a role's learning rate.

    Args:
        prefix: as in ``set_optimizer``.
        role: as in ``set_optimizer``.
        steps: number of verl's steps of the whole run; None: it depends on the number of rows.
    """
    key = f"{prefix}.lr_scheduler_type"
    name = source.text(key)
    schedule = _SCHEDULES.get(name, "constant")
    out.set(f"{role}.lr_schedule", schedule, key)
    if name not in _SCHEDULES:
        out.missing(key, f"no schedule is known to be {name}; the rate stays constant")
    _set_floor(source, out, prefix, role, schedule)
    count, ratio = f"{prefix}.lr_warmup_steps", f"{prefix}.lr_warmup_steps_ratio"
    number = source.whole(count)
    if number <= 0:
        out.set(f"{role}.warmup_ratio", source.number(ratio), ratio)
        out.nothing(count, "the share lr_warmup_steps_ratio counts")
    elif steps:
        share = min(number / steps, 1.0)
        comment = f"{number} of {steps} steps"
        out.set(f"{role}.warmup_ratio", round(share, 6), count, comment=comment)
        out.nothing(ratio, "lr_warmup_steps counts")
    else:
        out.missing(
            count,
            f"a warm-up is a share of all updates, and the number of steps depends on the rows: divide {number} by it "
            f"for {role}.warmup_ratio, which stays 0.03",
        )
        out.nothing(ratio, "lr_warmup_steps counts")


def _set_floor(source: SourceOptions, out: Outcome, prefix: str, role: str, schedule: str) -> None:
    ratio, lowest = f"{prefix}.min_lr_ratio", f"{prefix}.min_lr"
    if schedule == "constant":
        out.nothing((ratio, lowest), "the learning rate is constant")
    elif source.number(lowest):
        share = source.number(lowest) / source.number(f"{prefix}.lr")
        out.set(f"{role}.min_lr_ratio", round(share, 6), lowest)
        out.nothing(ratio, "min_lr counts")
    else:
        out.set(f"{role}.min_lr_ratio", source.number(ratio), ratio)
        out.nothing(lowest, "the share min_lr_ratio counts")
