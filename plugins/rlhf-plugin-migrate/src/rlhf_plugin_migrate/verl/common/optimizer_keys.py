"""Keys of an optimizer and of the schedule of its learning rate."""

from __future__ import annotations

from ...table.entries import Missing, Nothing, Rule
from ...table.kinds import NUMBER, TEXT, WHOLE
from .key_table import Line

STATE = Nothing("the backend decides where and in which type the optimizer's state is kept")
"""Fate of keys below ``override_optimizer_config``, and of types of the optimizer's state."""


def optimizer_lines(
    prefix: str,
    role: str,
    *,
    lr: float,
    beta: float = 0.999,
    warmup_share: float = 0.0,
    schedule_name: str = "constant",
    old_norm: str = "",
) -> tuple[Line, ...]:
    """Return the keys of one role's optimizer.

    Args:
        prefix: beginning of the keys, without the dot.
        role: section of the role here, such as ``actor``.
        lr: the learning rate's default.
        beta: default of the decay of the gradient's square.
        warmup_share: default of the share of all steps in which the rate rises.
        schedule_name: default of the schedule.
        old_norm: an older name of the largest norm.
    """
    schedule = Rule(f"{role}.lr_schedule")
    warmup = Rule(f"{role}.warmup_ratio")

    def adam(option: str) -> Rule:
        return Rule(f"{role}.adam.{option}", f"{role}.adam8bit.{option}")

    lines: tuple[Line, ...] = (
        (f"{prefix}.lr", NUMBER, lr, adam("lr")),
        (f"{prefix}.weight_decay", NUMBER, 0.01, adam("weight_decay")),
        (f"{prefix}.betas", TEXT, [0.9, beta], adam("betas")),
        (f"{prefix}.eps", NUMBER, 1e-8, adam("eps")),
        (f"{prefix}.clip_grad {old_norm}", NUMBER, 1.0, Rule(f"{role}.max_norm")),
        (f"{prefix}.optimizer", TEXT, "AdamW", Rule(f"{role}.optim")),
        (f"{prefix}.optimizer_impl", TEXT, "torch.optim", Rule(f"{role}.optim")),
        (f"{prefix}.lr_scheduler_type {prefix}.warmup_style {prefix}.lr_scheduler {prefix}.lr_decay_style",
         TEXT, schedule_name, schedule),
        (f"{prefix}.lr_warmup_steps_ratio", NUMBER, warmup_share, warmup),
        (f"{prefix}.lr_warmup_steps", WHOLE, -1, warmup),
        (f"{prefix}.min_lr_ratio", NUMBER, 0.0, Rule(f"{role}.min_lr_ratio")),
        (f"{prefix}.min_lr", NUMBER, 0.0, Rule(f"{role}.min_lr_ratio")),
        (f"{prefix}.lr_warmup_init", NUMBER, 0.0, Missing("a warm-up begins at 0", off=(0.0,))),
        (f"{prefix}.init_lr_ratio", NUMBER, None, Missing("a warm-up begins at 0", off=(None, 0.0))),
        (f"{prefix}.lr_decay_steps", WHOLE, None, Missing("a schedule ends with the run", off=(None,))),
        (f"{prefix}.num_cycles", NUMBER, 0.5, Missing("a cosine is half a cycle", off=(0.5,))),
        (f"{prefix}.total_training_steps", WHOLE, -1, Nothing("a schedule is as long as the run")),
        (f"{prefix}.override_optimizer_config", TEXT, None, STATE),
    )  # fmt: skip
    return lines
