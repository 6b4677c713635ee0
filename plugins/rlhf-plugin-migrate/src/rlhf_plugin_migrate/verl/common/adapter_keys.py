"""Keys of a model adapter: the short ones, and those of Megatron's below ``lora``."""

from __future__ import annotations

from ...table.entries import Missing, Rule
from ...table.kinds import NUMBER, TEXT, WHOLE
from .key_table import Line


def adapter_lines(prefix: str, role: str) -> tuple[Line, ...]:
    """Return the keys of one role's adapter; the arguments are those of ``optimizer_lines``."""
    lines: tuple[Line, ...] = (
        (f"{prefix}.lora_rank {prefix}.lora.rank", WHOLE, 0, Rule(f"{role}.adapter", f"{role}.lora.rank")),
        (f"{prefix}.lora_alpha {prefix}.lora.alpha", NUMBER, 16.0, Rule(f"{role}.lora.alpha")),
        (f"{prefix}.target_modules {prefix}.lora.target_modules", TEXT, "all-linear", Rule(f"{role}.lora.target")),
        (f"{prefix}.exclude_modules {prefix}.lora.exclude_modules", TEXT, None, Rule(f"{role}.lora.exclude")),
        (f"{prefix}.lora_adapter_path {prefix}.lora.adapter_path", TEXT, None, Rule(f"{role}.lora.init_from")),
        (f"{prefix}.lora.dropout", NUMBER, 0.0, Rule(f"{role}.lora.dropout")),
        (f"{prefix}.lora.type", TEXT, "lora", Missing("of Megatron's adapters there is lora alone", off=("lora",))),
        (f"{prefix}.lora.dropout_position", TEXT, "pre",
         Missing("a dropout is before the adapter", off=("pre",))),
        (f"{prefix}.lora.lora_A_init_method", TEXT, "xavier",
         Missing("A begins as in PEFT", off=("kaiming",))),
    )  # fmt: skip
    return lines
