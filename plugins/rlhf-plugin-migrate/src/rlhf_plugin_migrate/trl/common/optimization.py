"""Rules of TRL's optimizer and of the schedule of its learning rate."""

from __future__ import annotations

from typing import Any

from ...table.outcome import Outcome
from ...table.source import SourceOptions

Arguments = dict[str, Any]

_OPTIMIZERS = {
    "adamw_torch_fused": "adam",
    "adamw_torch": "adam",
    "adamw_apex_fused": "adam",
    "adamw_anyprecision": "adam",
    "adamw_32bit": "adam",
    "adamw_bnb_8bit": "adam8bit",
    "adamw_8bit": "adam8bit",
    "sgd": "sgd",
}
"""Optimizer of Transformers, without ``paged_`` -> ours."""

_SCHEDULES = {
    "linear": ("linear", 0.0),
    "cosine": ("cosine", 0.0),
    "cosine_with_min_lr": ("cosine", 0.1),
    "constant": ("constant", 0.0),
    "constant_with_warmup": ("constant", 0.0),
    "inverse_sqrt": ("inverse_sqrt", 0.0),
    "warmup_stable_decay": ("wsd", 0.0),
}
"""Schedule of Transformers -> ours, and its floor unless ``lr_scheduler_kwargs`` has another one."""

_WITHOUT_FLOOR = ("constant", "inverse_sqrt")
_DECAYS = {"linear": "linear", "1-sqrt": "sqrt"}
"""Form of the decay of ``warmup_stable_decay`` -> ours."""
_TIMESCALE = 10_000
"""Timescale of Transformers' inverse square root without a warm-up; with one it is the warm-up's length, as ours."""


def set_optimization(source: SourceOptions, out: Outcome) -> None:
    """Set the optimizer, and the schedule of its learning rate."""
    _set_optimizer(source, out)
    _set_schedule(source, out)


def _set_optimizer(source: SourceOptions, out: Outcome) -> None:
    name = source.text("optim")
    ours = _OPTIMIZERS.get(name.removeprefix("paged_"), "")
    if not ours:
        ours = "adam"
        out.missing("optim", f"there is no {name}: adam, adam8bit, muon and sgd are; adam is set")
    out.set("actor.optim", ours, "optim")
    if ours == "adam8bit" and name.startswith("paged_"):
        out.set("actor.adam8bit.paged", True, "optim")
    out.copy(f"actor.{ours}.lr", "learning_rate")
    out.copy(f"actor.{ours}.weight_decay", "weight_decay")
    if ours == "sgd":
        out.nothing(("adam_beta1", "adam_beta2", "adam_epsilon"), "the optimizer is sgd")
        return
    betas = [source.number("adam_beta1"), source.number("adam_beta2")]
    out.set(f"actor.{ours}.betas", betas, "adam_beta1", "adam_beta2")
    out.copy(f"actor.{ours}.eps", "adam_epsilon")


def _set_schedule(source: SourceOptions, out: Outcome) -> None:
    name = source.text("lr_scheduler_type")
    if name not in _SCHEDULES:
        out.missing(
            "lr_scheduler_type",
            f"no schedule is known to be {name}; constant is set, see actor.lr_schedule",
        )
    schedule, floor = _SCHEDULES.get(name, ("constant", 0.0))
    out.set("actor.lr_schedule", schedule, "lr_scheduler_type")
    arguments = source.value("lr_scheduler_kwargs")
    rest: Arguments = dict(arguments) if isinstance(arguments, dict) else {}
    if name == "cosine_with_min_lr":
        peak = source.number("learning_rate")
        floor = float(rest.pop("min_lr_rate", 0.0) or float(rest.pop("min_lr", 0.0)) / peak)
    if schedule == "inverse_sqrt":
        _set_timescale(source, out, rest)
    elif schedule == "wsd":
        floor = float(rest.pop("min_lr_ratio", 0.0))
        _set_decay(source, out, rest)
    if schedule not in _WITHOUT_FLOOR:
        out.set("actor.min_lr_ratio", floor, "lr_scheduler_type", "lr_scheduler_kwargs")
    if rest:
        out.missing(
            "lr_scheduler_kwargs",
            f"{', '.join(rest)}: the schedules have a warm-up and a floor only",
        )
    else:
        out.nothing("lr_scheduler_kwargs", "the floor is all that it may say here")
    _set_warmup(source, out, name)


def _set_timescale(source: SourceOptions, out: Outcome, rest: Arguments) -> None:
    timescale = rest.pop("timescale", None)
    if timescale is None and not source.number(_warmup_key(source)):
        timescale = _TIMESCALE
    if timescale is not None:
        keys = ("lr_scheduler_type", "lr_scheduler_kwargs")
        out.set("actor.inverse_sqrt.timescale", int(timescale), *keys)


def _set_decay(source: SourceOptions, out: Outcome, rest: Arguments) -> None:
    """Set form and length of a decay, of which Transformers gives the updates and we the share after the warm-up."""
    key = "lr_scheduler_kwargs"
    form = rest.pop("decay_type", "cosine")
    if form not in _DECAYS:
        out.differs(
            key,
            f"there is no decay of the form {form}; linear is set, which differs most in its middle",
        )
    out.set("actor.wsd.form", _DECAYS.get(form, "linear"), key)
    decay, total = float(rest.pop("num_decay_steps", 0)), source.whole("max_steps")
    warmup = source.number(_warmup_key(source))
    warmup = warmup if warmup >= 1 else warmup * total
    if decay and total > warmup:
        share = min(decay / (total - warmup), 1.0)
        out.set(
            "actor.wsd.decay_share", share, key, comment=f"{decay:g} of {total - warmup:g} updates"
        )
    else:
        out.missing(
            key,
            "num_decay_steps: a decay is a share of the updates after the warm-up (actor.wsd.decay_share), whose "
            "number the file does not have",
        )


def _warmup_key(source: SourceOptions) -> str:
    return "warmup_ratio" if source.given("warmup_ratio") else "warmup_steps"


def _set_warmup(source: SourceOptions, out: Outcome, name: str) -> None:
    key = _warmup_key(source)
    out.nothing("warmup_steps" if key == "warmup_ratio" else "warmup_ratio", f"{key} is read")
    value, total = source.number(key), source.whole("max_steps")
    if value >= 1 and total > 0 and name != "constant":
        out.set(
            "actor.warmup_ratio",
            min(value / total, 1.0),
            key,
            comment=f"{value:g} of {total} updates",
        )
    elif value >= 1:
        out.set("actor.warmup_ratio", 0.0, key)
        out.missing(
            key,
            "a warm-up is a share of all updates (actor.warmup_ratio), whose number the file does not have",
        )
    else:
        out.set("actor.warmup_ratio", 0.0 if name == "constant" else value, key)
