"""Rules of a model adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_MEGATRON = {
    "linear_qkv": ["q_proj", "k_proj", "v_proj"],
    "linear_proj": ["o_proj"],
    "linear_fc1": ["gate_proj", "up_proj"],
    "linear_fc2": ["down_proj"],
}
"""Module of Megatron -> those of Transformers."""


_SHORT = ("lora_rank", "lora_alpha", "target_modules", "exclude_modules", "lora_adapter_path")
_LONG = (
    "lora.rank",
    "lora.alpha",
    "lora.target_modules",
    "lora.exclude_modules",
    "lora.adapter_path",
)


def set_adapter(source: SourceOptions, out: Outcome, prefix: str, role: str) -> None:
    """Set a role's adapter, of which verl is told a rank or a folder; the arguments are those of ``set_optimizer``."""
    used = next((names for names in (_SHORT, _LONG) if _is_used(source, prefix, names)), None)
    for name in (*_SHORT, *_LONG, "lora.dropout"):
        if used is None:
            out.nothing(f"{prefix}.{name}", "all weights are trained, as here")
        elif name not in used:
            out.nothing(f"{prefix}.{name}", f"{prefix}.{used[0]} says it")
    if used is None:
        return
    rank, alpha, target, exclude, start = (f"{prefix}.{name}" for name in used)
    dropout = f"{prefix}.lora.dropout"
    out.set(f"{role}.adapter", "lora", rank, start)
    if source.text(start):
        out.set(f"{role}.lora.init_from", source.text(start), start)
        out.nothing((rank, alpha, target, exclude, dropout), "the folder of the adapter says it")
        return
    out.nothing(start, "unset")
    keys = {"rank": rank, "alpha": alpha, "dropout": dropout, "target": target, "exclude": exclude}
    set_lora(source, out, f"{role}.lora", keys)


def set_lora(source: SourceOptions, out: Outcome, section: str, keys: Mapping[str, str]) -> None:
    """Set the options of an adapter.

    Args:
        section: section of the adapter here, such as ``actor.lora``.
        keys: key of each option, by our name of the option.
    """
    for name, key in keys.items():
        if name in ("rank", "dropout"):
            out.copy(f"{section}.{name}", key)
        elif name == "alpha":
            out.set(f"{section}.alpha", round(source.number(key)), key)
        else:
            _set_modules(source, out, key, f"{section}.{name}")


def _is_used(source: SourceOptions, prefix: str, names: Sequence[str]) -> bool:
    return source.whole(f"{prefix}.{names[0]}") > 0 or bool(source.text(f"{prefix}.{names[-1]}"))


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
        is_target = path.endswith(".target")
        out.nothing(key, "all linear layers but the output head" if is_target else "there are none")
        return
    out.set(path, [ours for name in names for ours in _MEGATRON.get(name, [name])], key)
