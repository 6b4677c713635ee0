"""Rules of an optimizer, its schedule and its warm-up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_SCHEDULES = {
    "constant": "constant",
    "cosine": "cosine",
    "linear": "linear",
    "wsd": "wsd",
    "WSD": "wsd",
    "constant_with_warmup": "constant",
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
        out.copy(f"{role}.{name}.{option}", key)
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
    schedule = set_form(source, out, key, role)
    _set_floor(source, out, prefix, role, schedule)
    _set_start(source, out, prefix, role)
    _set_course(source, out, prefix, role, schedule, steps)
    count, ratio = f"{prefix}.lr_warmup_steps", f"{prefix}.lr_warmup_steps_ratio"
    number = source.whole(count)
    if number <= 0:
        out.copy(f"{role}.warmup_ratio", ratio)
        out.nothing(count, "the share lr_warmup_steps_ratio counts")
    else:
        set_warmup(out, count, role, number, steps)
        out.nothing(ratio, "lr_warmup_steps counts")


def set_form(
    source: SourceOptions,
    out: Outcome,
    key: str,
    role: str,
    forms: Mapping[str, str] = MappingProxyType(_SCHEDULES),
) -> str:
    """Set the form of a schedule, and return our name of it.

    Args:
        key: key of the schedule's name.
        role: as in ``set_optimizer``.
        forms: our name of each.
    """
    name = source.text(key)
    form = forms.get(name, "constant")
    out.set(f"{role}.lr_schedule", form, key)
    if name not in forms:
        out.missing(key, f"no schedule is known to be {name}; the rate stays constant")
    return form


def set_warmup(out: Outcome, key: str, role: str, number: int, steps: int | None) -> None:
    """Set the share of steps in which a learning rate rises.

    Args:
        key: key of the number.
        role: as in ``set_optimizer``.
        number: steps in which it rises.
        steps: all steps; None: they depend on the number of rows.
    """
    if not number:
        out.set(f"{role}.warmup_ratio", 0.0, key)
    elif steps:
        comment = f"{number} of {steps} steps"
        out.set(f"{role}.warmup_ratio", round(min(number / steps, 1.0), 6), key, comment=comment)
    else:
        out.missing(
            key,
            f"a warm-up is a share of all updates, and the number of steps depends on the rows: divide {number} by it "
            f"for {role}.warmup_ratio, which stays 0.03",
        )


def _set_floor(source: SourceOptions, out: Outcome, prefix: str, role: str, schedule: str) -> None:
    ratio, lowest = f"{prefix}.min_lr_ratio", f"{prefix}.min_lr"
    if schedule == "constant":
        out.nothing((ratio, lowest), "the learning rate is constant")
    elif source.number(lowest):
        share = source.number(lowest) / source.number(f"{prefix}.lr")
        out.set(f"{role}.min_lr_ratio", round(share, 6), lowest)
        out.nothing(ratio, "min_lr counts")
    else:
        out.copy(f"{role}.min_lr_ratio", ratio)
        out.nothing(lowest, "the share min_lr_ratio counts")


def _set_start(source: SourceOptions, out: Outcome, prefix: str, role: str) -> None:
    """Set where a warm-up begins: a rate, or a share of the peak."""
    rate, share = f"{prefix}.lr_warmup_init", f"{prefix}.init_lr_ratio"
    if source.number(rate):
        found = min(source.number(rate) / source.number(f"{prefix}.lr"), 1.0)
        out.set(f"{role}.init_lr_ratio", round(found, 6), rate)
        out.nothing(share, "lr_warmup_init counts")
        return
    out.nothing(rate, "0 is the default")
    if source.value(share):
        out.copy(f"{role}.init_lr_ratio", share)
    else:
        out.nothing(share, "a warm-up begins at 0")


def _set_course(
    source: SourceOptions, out: Outcome, prefix: str, role: str, schedule: str, steps: int | None
) -> None:
    """Set the waves of a cosine, and where a rate has fallen."""
    cycles, end = f"{prefix}.num_cycles", f"{prefix}.lr_decay_steps"
    if schedule == "cosine":
        out.copy(f"{role}.cosine.num_cycles", cycles)
    else:
        out.nothing(cycles, "it concerns cosine")
    number = source.value(end)
    if not isinstance(number, int) or number <= 0:
        out.nothing(end, "the rate falls to the end of the run")
    elif schedule == "constant":
        out.nothing(end, "the learning rate is constant")
    elif schedule == "wsd":
        out.missing(
            end, f"wsd ends with the run; {role}.wsd.decay_share says when it begins to fall"
        )
    elif steps:
        share = round(min(number / steps, 1.0), 6)
        out.set(f"{role}.{schedule}.end_share", share, end, comment=f"{number} of {steps} steps")
    else:
        out.missing(
            end,
            f"the end is a share of all updates, and the number of steps depends on the rows: divide {number} by it "
            f"for {role}.{schedule}.end_share",
        )
