"""Rules that ``rl`` and ``sft`` share: optimizer, schedule, adapter, backend and records."""

from __future__ import annotations

import math
from typing import cast

from ..table.outcome import Outcome
from ..table.source import SourceOptions
from ..verl.common.adapter import set_lora
from ..verl.common.optimizer import set_form, set_warmup
from ..verl.common.placed import set_backend

_OPTIMIZERS = {
    "adamw": ("adam", ()),
    "muon": ("muon", (("mu", "momentum"),)),
    "sgd": ("sgd", (("momentum", "momentum"), ("nesterov", "nesterov"))),
}
"""Optimizer -> ours, and its further keys with our options."""
_SCHEDULES = {"constant": "constant", "cosine": "cosine", "linear": "wsd"}
_LORA = ("rank", "alpha", "dropout", "target_modules", "modules_to_save")
_WANDB = "monitors.wandb"


def set_training(source: SourceOptions, out: Outcome, prefix: str) -> None:
    """Set everything that is shared.

    Args:
        prefix: beginning of the keys of the trainer: ``trainer.`` or nothing.
    """
    _set_optimizer(source, out, f"{prefix}optim")
    _set_schedule(source, out, f"{prefix}scheduler", f"{prefix}optim.lr")
    _set_adapter(source, out, f"{prefix}model.lora")
    _set_backend(source, out, f"{prefix}model")
    if source.given("output_dir", "run.name"):
        folder = f"{source.text('output_dir')}/{source.text('run.name')}".rstrip("/")
        out.set("output", folder, "output_dir", "run.name")
    if any(source.given(key) for key in source.entries if key.startswith(f"{_WANDB}.")):
        out.set("log.to", ["wandb"], *(f"{_WANDB}.{name}" for name in ("project", "name")))
        for name in ("project", "name"):
            if source.value(f"{_WANDB}.{name}") is not None:
                out.set(f"log.wandb.{name}", source.text(f"{_WANDB}.{name}"), f"{_WANDB}.{name}")
    if source.given("resume"):
        out.differs(
            "resume",
            "checkpoints of prime-rl cannot be read: --resume auto goes on from one of ours",
        )


def num_train_gpus(source: SourceOptions) -> int:
    """Return the number of GPUs of the trainer."""
    return math.prod(map(source.whole, train_gpu_keys(source)))


def train_gpu_keys(source: SourceOptions) -> tuple[str, ...]:
    """Return the keys that say it."""
    if source.value("deployment.num_train_nodes") is not None:
        return ("deployment.num_train_nodes", "deployment.gpus_per_node")
    return ("deployment.num_train_gpus",)


def _set_optimizer(source: SourceOptions, out: Outcome, optim: str) -> None:
    kind = f"{optim}.type"
    theirs = source.text(kind)
    name, further = _OPTIMIZERS.get(theirs, ("adam", ()))
    out.set("actor.optim", name, kind)
    if theirs not in _OPTIMIZERS:
        out.missing(kind, f"{theirs} is no optimizer here; adam is taken")
    for option in ("lr", "weight_decay"):
        out.copy(f"actor.{name}.{option}", f"{optim}.{option}")
    if name == "adam":
        betas = (f"{optim}.betas1", f"{optim}.betas2")
        out.set("actor.adam.betas", [source.number(key) for key in betas], *betas)
    for key, option in further:
        out.copy(f"actor.{name}.{option}", f"{optim}.{key}")
    if source.given(f"{optim}.weight_decay") and source.number(f"{optim}.weight_decay"):
        out.differs(
            f"{optim}.weight_decay", "matrices are decayed; prime-rl decays biases and norms too"
        )


def _set_schedule(source: SourceOptions, out: Outcome, scheduler: str, rate: str) -> None:
    kind, warmup, decay, lowest = (
        f"{scheduler}.{name}" for name in ("type", "warmup_steps", "decay_steps", "min_lr")
    )
    theirs, steps = source.text(kind), cast(int | None, source.value("max_steps"))
    set_form(source, out, kind, "actor", _SCHEDULES)
    if theirs == "constant":
        out.set("actor.warmup_ratio", 0.0, kind)
        return
    if source.number(lowest):
        out.set("actor.min_lr_ratio", round(source.number(lowest) / source.number(rate), 6), lowest)
    if not steps:
        out.missing(kind, "max_steps is unset, on which the shares of warm-up and decay depend")
        return
    set_warmup(out, warmup, "actor", source.whole(warmup), steps)
    if theirs == "linear":
        rest = max(steps - source.whole(warmup), 1)
        out.set("actor.wsd.decay_share", round(min(source.whole(decay) / rest, 1.0), 6), decay)
        out.set("actor.wsd.form", "linear", kind)


def _set_adapter(source: SourceOptions, out: Outcome, lora: str) -> None:
    if source.given(lora, *(key for key in source.entries if key.startswith(f"{lora}."))):
        out.set("actor.adapter", "lora", lora)
        keys = {name.removesuffix("_modules"): f"{lora}.{name}" for name in _LORA}
        set_lora(source, out, "actor.lora", keys)


def _set_backend(source: SourceOptions, out: Outcome, model: str) -> None:
    parallel, saving, gpus = f"{model}.cp", f"{model}.ac", train_gpu_keys(source)[0]
    backend = set_backend(out, num_train_gpus(source), source.whole(parallel), gpus, parallel)
    out.set(f"backend.{backend}.gradient_checkpointing", source.value(saving) is not None, saving)
