"""Rules of the model adapter: LoRA beside fixed weights, or beside weights in 4 bits."""

from __future__ import annotations

from collections.abc import Sequence

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_RANK, _FOUR_BITS = "ds.lora.rank", "ds.load_in_4bit"
_DETAILS = ("alpha", "dropout", "target_modules")
_ALL_LINEAR = "all-linear"
OPTIONS = ("rank", "alpha", "dropout", "target")
"""Options of an adapter that the flags may set."""


def has_adapter(source: SourceOptions) -> bool:
    """Return True if an adapter is trained: OpenRLHF makes none with a rank of 0, whatever else is set."""
    return source.whole(_RANK) > 0


def set_adapter(
    source: SourceOptions, out: Outcome, roles: Sequence[str], *, is_sampled_from: bool
) -> None:
    """Set the adapter of each role.

    Args:
        roles: sections of the trained roles, such as ``actor``.
        is_sampled_from: True if vLLM samples from the model, which no weights in 4 bits can serve.
    """
    if not has_adapter(source):
        out.nothing(_RANK, "0: all weights are trained, as here")
        for name in _DETAILS:
            out.nothing(f"ds.lora.{name}", f"OpenRLHF makes no adapter with --{_RANK} 0")
        if source.flag(_FOUR_BITS):
            out.missing(
                _FOUR_BITS,
                f"weights in 4 bits cannot be trained without an adapter: set --{_RANK} too",
            )
        return
    name = "lora"
    if source.flag(_FOUR_BITS) and is_sampled_from:
        out.missing(
            _FOUR_BITS,
            "the engine vllm gets its base from the model's files and would not sample from weights in 4 bits, so the "
            "base keeps its type; qlora needs an engine that shares the trainer's model (--engine embedded)",
        )
    elif source.flag(_FOUR_BITS):
        name = "qlora"
        out.differs(
            _FOUR_BITS,
            "4 bits were tried with the backend torch only (--runtime local --backend torch), not with deepspeed",
        )
    for role in roles:
        _set_options(source, out, role, name)


def _set_options(source: SourceOptions, out: Outcome, role: str, name: str) -> None:
    flags = (_RANK, _FOUR_BITS) if name == "qlora" else (_RANK,)
    section = f"{role}.{name}"
    out.set(f"{role}.adapter", name, *flags)
    out.set(f"{section}.rank", source.whole(_RANK), _RANK)
    out.set(f"{section}.alpha", source.whole("ds.lora.alpha"), "ds.lora.alpha")
    out.set(f"{section}.dropout", source.number("ds.lora.dropout"), "ds.lora.dropout")
    modules = source.value("ds.lora.target_modules")
    targets = [str(module) for module in modules] if isinstance(modules, list) else []
    if targets and targets != [_ALL_LINEAR]:
        out.set(f"{section}.target", targets, "ds.lora.target_modules")
    else:
        out.nothing("ds.lora.target_modules", "the default: all linear layers but the output head")
