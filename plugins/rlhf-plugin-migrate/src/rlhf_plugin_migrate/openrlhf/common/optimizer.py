"""Rules of one role's optimizer: Adam or Muon, and the schedule of its learning rate."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_SCHEDULES = {
    "cosine_with_min_lr": ("cosine", None),
    "cosine_warmup_with_min_lr": ("cosine", None),
    "cosine": ("cosine", 0.0),
    "linear": ("linear", 0.0),
    "constant": ("constant", None),
    "constant_with_warmup": ("constant", None),
    "inverse_sqrt": ("inverse_sqrt", None),
}
"""Name of a schedule in Transformers -> ours, and its floor where it is not an option."""
WITHOUT_FLOOR = {
    "constant": "the learning rate is constant",
    "inverse_sqrt": "the schedule has no floor",
}
"""Our schedule without a floor -> why an option for one changes nothing."""
INVERSE_SQRT_TIMESCALE = 10_000
"""Timescale of Transformers' inverse square root without a warm-up; with one it is the warm-up's length, as ours."""


def set_optimizer(source: SourceOptions, out: Outcome, role: str, prefix: str) -> None:
    """Set the optimizer of a role.

    Args:
        prefix: beginning of the flags, such as ``actor.``; empty for the programs that train one model.
    """
    name = source.text(f"{prefix}optim")
    out.set(f"{role}.optim", name, f"{prefix}optim")
    if name == "adam":
        for option in ("lr", "betas", "eps", "weight_decay"):
            flag = f"{prefix}adam.{option}"
            out.copy(f"{role}.adam.{option}", flag)
        out.nothing(
            (f"{prefix}muon.{option}" for option in ("lr", "momentum")), "the optimizer is adam"
        )
    else:
        for option in ("lr", "momentum"):
            flag = f"{prefix}muon.{option}"
            out.copy(f"{role}.muon.{option}", flag)
        comment = "DeepSpeed's scaling of a matrix's learning rate"
        out.set(f"{role}.muon.adjust_lr", "original", f"{prefix}muon.lr", comment=comment)
        for option, ours in (("lr", "adam_lr"), ("betas", "adam_betas"), ("eps", "adam_eps")):
            flag = f"{prefix}adam.{option}"
            out.copy(f"{role}.muon.{ours}", flag)
        flag = f"{prefix}adam.weight_decay"
        out.copy(f"{role}.muon.weight_decay", flag)
        if source.number(flag):
            out.differs(flag, "only matrices are decayed; DeepSpeed's Muon decays norms too")
    norm = source.number(f"{prefix}max_norm")
    out.set(f"{role}.max_norm", norm if norm else "none", f"{prefix}max_norm")


def set_schedule(source: SourceOptions, out: Outcome, role: str, prefix: str) -> None:
    """Set the schedule of a role's learning rate; the arguments are those of ``set_optimizer``."""
    flag, floor_flag = f"{prefix}lr_scheduler", f"{prefix}min_lr_ratio"
    name = source.text(flag)
    if name not in _SCHEDULES:
        out.missing(
            flag,
            f"no schedule is known to be {name}; see actor.lr_schedule in docs/algorithms/README.md",
        )
    schedule, floor = _SCHEDULES.get(name, ("constant", None))
    out.set(f"{role}.lr_schedule", schedule, flag)
    if name == "constant":
        out.set(
            f"{role}.warmup_ratio", 0.0, flag, comment="constant has no warm-up in Transformers"
        )
        out.nothing(
            f"{prefix}lr_warmup_ratio", "the schedule constant of Transformers has no warm-up"
        )
    else:
        warmup = source.number(f"{prefix}lr_warmup_ratio")
        out.set(f"{role}.warmup_ratio", warmup, f"{prefix}lr_warmup_ratio")
        if schedule == "inverse_sqrt" and not warmup:
            out.set(f"{role}.inverse_sqrt.timescale", INVERSE_SQRT_TIMESCALE, flag)
    if schedule in WITHOUT_FLOOR:
        out.nothing(floor_flag, WITHOUT_FLOOR[schedule])
    elif floor is None:
        out.copy(f"{role}.min_lr_ratio", floor_flag)
    else:
        out.set(f"{role}.min_lr_ratio", floor, flag, comment=f"{name} of Transformers ends at 0")
        out.nothing(floor_flag, f"OpenRLHF reads it only with cosine_with_min_lr, not with {name}")
