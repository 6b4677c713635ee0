"""Rules of a model adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_MEGATRON = {
    "linear_qkv": ["q_proj", "k_proj", "v_proj"],
    "linear_proj": ["o_proj"],
    "linear_fc1": ["gate_proj", "up_proj"],
    "linear_fc2": ["down_proj"],
}
"""Module of Megatron -> those of Transformers."""


def has_adapter(source: SourceOptions, prefix: str) -> bool:
    """Return True if an adapter is trained, of which verl is told a rank or a folder.

    Args:
        prefix: beginning of the keys, without the dot.
    """
    return source.whole(f"{prefix}.lora_rank") > 0 or bool(
        source.text(f"{prefix}.lora_adapter_path")
    )


def set_adapter(source: SourceOptions, out: Outcome, prefix: str, role: str) -> None:
    """Set a role's adapter; the arguments are those of ``set_optimizer``."""
    rank, start = f"{prefix}.lora_rank", f"{prefix}.lora_adapter_path"
    details = [
        f"{prefix}.{name}"
        for name in ("lora_alpha", "target_modules", "exclude_modules", "lora.dropout")
    ]
    if not has_adapter(source, prefix):
        for key in (rank, start, *details):
            out.nothing(key, "all weights are trained, as here")
        return
    out.set(f"{role}.adapter", "lora", rank, start)
    if source.text(start):
        out.set(f"{role}.lora.init_from", source.text(start), start)
        for key in (rank, *details):
            out.nothing(key, "the folder of the adapter says it")
        return
    section = f"{role}.lora"
    out.set(f"{section}.rank", source.whole(rank), rank)
    out.set(
        f"{section}.alpha", round(source.number(f"{prefix}.lora_alpha")), f"{prefix}.lora_alpha"
    )
    out.set(f"{section}.dropout", source.number(f"{prefix}.lora.dropout"), f"{prefix}.lora.dropout")
    _set_modules(source, out, f"{prefix}.target_modules", f"{section}.target")
    _set_modules(source, out, f"{prefix}.exclude_modules", f"{section}.exclude")


def _set_modules(source: SourceOptions, out: Outcome, key: str, path: str) -> None:
    value = source.value(key)
    names = (
        [str(name) for name in value]
        if isinstance(value, Sequence) and not isinstance(value, str)
        else []
    )
    if isinstance(value, str) and value not in ("all-linear", ""):
        names = [value]
    if not names:
        out.nothing(key, "the default: all linear layers but the output head")
        return
    out.set(path, [ours for name in names for ours in _MEGATRON.get(name, [name])], key)
