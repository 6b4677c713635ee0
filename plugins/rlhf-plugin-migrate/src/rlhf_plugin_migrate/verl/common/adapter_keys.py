"""Keys of a model adapter: the short ones, and those of Megatron's below ``lora``, which have defaults of their own."""

from __future__ import annotations

from ...table.entries import Missing, Rule
from ...table.kinds import NUMBER, TEXT, WHOLE
from .key_table import Line

MEGATRON = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
"""Modules of Megatron that get an adapter unless a key says otherwise."""


def adapter_lines(prefix: str, role: str) -> tuple[Line, ...]:
    """Return the keys of one role's adapter; the arguments are those of ``optimizer_lines``."""
    rank = Rule(f"{role}.adapter", f"{role}.lora.rank")
    alpha, target, exclude, start = (
        Rule(f"{role}.lora.{name}") for name in ("alpha", "target", "exclude", "init_from")
    )
    lines: tuple[Line, ...] = (
        (f"{prefix}.lora_rank", WHOLE, 0, rank),
        (f"{prefix}.lora_alpha", NUMBER, 16.0, alpha),
        (f"{prefix}.target_modules", TEXT, "all-linear", target),
        (f"{prefix}.exclude_modules", TEXT, None, exclude),
        (f"{prefix}.lora_adapter_path", TEXT, None, start),
        (f"{prefix}.lora.rank", WHOLE, 0, rank),
        (f"{prefix}.lora.alpha", NUMBER, 32.0, alpha),
        (f"{prefix}.lora.target_modules", TEXT, MEGATRON, target),
        (f"{prefix}.lora.exclude_modules", TEXT, [], exclude),
        (f"{prefix}.lora.adapter_path", TEXT, None, start),
        (f"{prefix}.lora.dropout", NUMBER, 0.0, Rule(f"{role}.lora.dropout")),
        (f"{prefix}.lora.type", TEXT, "lora", Missing("of Megatron's adapters there is lora alone", off=("lora",))),
        (f"{prefix}.lora.dropout_position", TEXT, "pre",
         Missing("a dropout is before the adapter", off=("pre",))),
        (f"{prefix}.lora.lora_A_init_method", TEXT, "xavier",
         Missing("A begins as in PEFT", off=("kaiming",))),
    )  # fmt: skip
    return lines
