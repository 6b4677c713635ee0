"""Rules that ``rl`` and ``sft`` share: optimizer, schedule, adapter, backend and records."""

from __future__ import annotations

from typing import cast

from ..table.entries import Rule
from ..table.outcome import Outcome
from ..table.source import SourceOptions

_OPTIMIZERS = {
    "adamw": ("adam", ()),
    "muon": ("muon", (("mu", "momentum"),)),
    "sgd": ("sgd", (("momentum", "momentum"), ("nesterov", "nesterov"))),
}
"""Optimizer -> ours, and its further keys with our options."""
_SCHEDULES = {"constant": "constant", "cosine": "cosine", "linear": "wsd"}
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


def note_the_rest(source: SourceOptions, out: Outcome) -> None:
    """Note that keys which no rule has used change nothing."""
    used = {key for setting in out.settings.values() for key in setting.sources}
    for key, entry in source.entries.items():
        if isinstance(entry.fate, Rule) and key not in used and key not in out.notes:
            out.nothing(key, "it changes nothing with the other keys")


def num_train_gpus(source: SourceOptions) -> int:
    """Return the number of GPUs of the trainer."""
    if source.value("deployment.num_train_nodes") is not None:
        return source.whole("deployment.num_train_nodes") * source.whole("deployment.gpus_per_node")
    return source.whole("deployment.num_train_gpus")


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
        out.set(f"actor.{name}.{option}", source.value(f"{optim}.{option}"), f"{optim}.{option}")
    if name == "adam":
        betas = (f"{optim}.betas1", f"{optim}.betas2")
        out.set("actor.adam.betas", [source.number(key) for key in betas], *betas)
    for key, option in further:
        out.set(f"actor.{name}.{option}", source.value(f"{optim}.{key}"), f"{optim}.{key}")
    if source.given(f"{optim}.weight_decay") and source.number(f"{optim}.weight_decay"):
        out.differs(
            f"{optim}.weight_decay", "matrices are decayed; prime-rl decays biases and norms too"
        )


def _set_schedule(source: SourceOptions, out: Outcome, scheduler: str, rate: str) -> None:
    kind, warmup, decay, lowest = (
        f"{scheduler}.{name}" for name in ("type", "warmup_steps", "decay_steps", "min_lr")
    )
    theirs, steps = source.text(kind), cast(int | None, source.value("max_steps"))
    out.set("actor.lr_schedule", _SCHEDULES.get(theirs, "constant"), kind)
    if theirs not in _SCHEDULES:
        out.missing(kind, f"no schedule is known to be {theirs}; the rate stays constant")
    if theirs == "constant":
        out.set("actor.warmup_ratio", 0.0, kind)
        return
    if source.number(lowest):
        out.set("actor.min_lr_ratio", round(source.number(lowest) / source.number(rate), 6), lowest)
    if not steps:
        out.missing(kind, "max_steps is unset, on which the shares of warm-up and decay depend")
        return
    out.set("actor.warmup_ratio", round(source.whole(warmup) / steps, 6), warmup)
    if theirs == "linear":
        rest = max(steps - source.whole(warmup), 1)
        out.set("actor.wsd.decay_share", round(min(source.whole(decay) / rest, 1.0), 6), decay)
        out.set("actor.wsd.form", "linear", kind)


def _set_adapter(source: SourceOptions, out: Outcome, lora: str) -> None:
    keys = [key for key in source.entries if key == lora or key.startswith(f"{lora}.")]
    if not source.given(*keys):
        return
    out.set("actor.adapter", "lora", lora)
    for name, option in (("rank", "rank"), ("dropout", "dropout")):
        out.set(f"actor.lora.{option}", source.value(f"{lora}.{name}"), f"{lora}.{name}")
    out.set("actor.lora.alpha", round(source.number(f"{lora}.alpha")), f"{lora}.alpha")
    for name, option in (("target_modules", "target"), ("modules_to_save", "modules_to_save")):
        if names := source.value(f"{lora}.{name}"):
            out.set(f"actor.lora.{option}", names, f"{lora}.{name}")


def _set_backend(source: SourceOptions, out: Outcome, model: str) -> None:
    number, parallel, saving = num_train_gpus(source), f"{model}.cp", f"{model}.ac"
    gpus = train_gpu_keys(source)
    backend = "torch" if number == 1 else "deepspeed" if source.whole(parallel) > 1 else "fsdp"
    out.set("backend.name", backend, *gpus)
    if backend == "deepspeed":
        out.set("backend.deepspeed.zero_stage", 3, parallel)
        out.set("backend.deepspeed.sequence_parallel", source.whole(parallel), parallel)
    out.set(f"backend.{backend}.gradient_checkpointing", source.value(saving) is not None, saving)
