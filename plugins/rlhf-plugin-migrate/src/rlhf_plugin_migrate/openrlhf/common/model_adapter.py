"""Rules of the model adapter: LoRA beside fixed weights, or beside weights in 4 bits."""

from __future__ import annotations

from collections.abc import Sequence

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_RANK, _FOUR_BITS, _STAGE = "ds.lora.rank", "ds.load_in_4bit", "ds.zero_stage"
_DETAILS = ("alpha", "dropout", "target_modules")
_ALL_LINEAR = "all-linear"


def has_adapter(source: SourceOptions) -> bool:
    """Return True if an adapter is trained: OpenRLHF makes none with a rank of 0, whatever else is set."""
    return source.whole(_RANK) > 0


def set_adapter(source: SourceOptions, out: Outcome, roles: Sequence[str]) -> None:
    """Set the adapter of each role.

    Args:
        roles: sections of the trained roles, such as ``actor``.
    """
    if not has_adapter(source):
        out.nothing(_RANK, "0: all weights are trained, as here")
        out.nothing(
            (f"ds.lora.{name}" for name in _DETAILS), f"OpenRLHF makes no adapter with --{_RANK} 0"
        )
        if source.flag(_FOUR_BITS):
            out.missing(
                _FOUR_BITS,
                f"weights in 4 bits cannot be trained without an adapter: set --{_RANK} too",
            )
        return
    name = "qlora" if source.flag(_FOUR_BITS) else "lora"
    if name == "qlora":
        _set_stage(source, out)
    for role in roles:
        _set_options(source, out, role, name)


def _set_stage(source: SourceOptions, out: Outcome) -> None:
    """Set the only stage at which DeepSpeed leaves packed integers as they are."""
    stage = source.whole(_STAGE)
    out.set("backend.deepspeed.zero_stage", 0, _FOUR_BITS, _STAGE)
    if stage:
        out.differs(
            _STAGE,
            f"a base in 4 bits is trained at stage 0, and not at {stage}, where DeepSpeed would cast its packed "
            "integers to floats; what is trained beside it is small",
        )


def _set_options(source: SourceOptions, out: Outcome, role: str, name: str) -> None:
    flags = (_RANK, _FOUR_BITS) if name == "qlora" else (_RANK,)
    section = f"{role}.{name}"
    out.set(f"{role}.adapter", name, *flags)
    out.copy(f"{section}.rank", _RANK)
    out.copy(f"{section}.alpha", "ds.lora.alpha")
    out.copy(f"{section}.dropout", "ds.lora.dropout")
    modules = source.value("ds.lora.target_modules")
    targets = [str(module) for module in modules] if isinstance(modules, list) else []
    if targets and targets != [_ALL_LINEAR]:
        out.set(f"{section}.target", targets, "ds.lora.target_modules")
    else:
        out.nothing("ds.lora.target_modules", "the default: all linear layers but the output head")
