"""Rules of the model adapter, which TRL has PEFT make: LoRA, DoRA, or LoRA beside weights in 4 bits."""

from __future__ import annotations

from ...table.kinds import Value
from ...table.outcome import Outcome
from ...table.source import SourceOptions

_ALL_LINEAR = "all-linear"
_PEFT_TARGETS = ("q_proj", "v_proj")
"""Modules that PEFT 0.21 adapts in models such as Llama, Mistral, Gemma, Qwen2 and Qwen3 when none are named."""
_DETAILS = (
    "use_dora", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_modules_to_save", "use_rslora",
    "lora_target_parameters",
)  # fmt: skip
_FOUR_BITS, _NESTED = "load_in_4bit", "use_bnb_nested_quant"


def set_adapter(source: SourceOptions, out: Outcome, *, backend: str) -> None:
    """Set the adapter.

    Args:
        backend: name of the training backend.
    """
    if not source.flag("use_peft"):
        out.nothing("use_peft", "all weights are trained, as here")
        out.nothing(_DETAILS, "TRL reads it only with use_peft")
        out.nothing(_NESTED, "nothing is quantized")
        if source.flag(_FOUR_BITS):
            out.missing(
                _FOUR_BITS, "weights in 4 bits cannot be trained without an adapter: set use_peft"
            )
        else:
            out.nothing(_FOUR_BITS, "nothing is quantized")
        return
    name = _name(source, out)
    section = f"actor.{name}"
    keys = ("use_peft", {"qlora": _FOUR_BITS, "dora": "use_dora"}.get(name, "use_peft"))
    out.set("actor.adapter", name, *dict.fromkeys(keys))
    out.copy(f"{section}.rank", "lora_r")
    out.copy(f"{section}.alpha", "lora_alpha")
    out.copy(f"{section}.dropout", "lora_dropout")
    out.copy(f"{section}.use_rslora", "use_rslora")
    _set_modules(source, out, section)
    _set_stacks(source, out, name)
    if name == "qlora":
        if backend == "deepspeed":
            # At other stages DeepSpeed would cast the base's packed integers to floats.
            out.set("backend.deepspeed.zero_stage", 0, _FOUR_BITS)
        out.copy(f"{section}.double_quantization", _NESTED)
    else:
        out.nothing(_NESTED, "nothing is quantized")


def _name(source: SourceOptions, out: Outcome) -> str:
    """Return the adapter, and note what of the keys it leaves out."""
    four_bits, dora = source.flag(_FOUR_BITS), source.flag("use_dora")
    if four_bits:
        if dora:
            out.missing("use_dora", "weights in 4 bits have the adapter qlora, which is LoRA")
        else:
            out.nothing("use_dora", "off")
        return "qlora"
    out.nothing(_FOUR_BITS, "nothing is quantized")
    if dora:
        return "dora"
    out.nothing("use_dora", "off")
    return "lora"


def _set_modules(source: SourceOptions, out: Outcome, section: str) -> None:
    key, saved_key = "lora_target_modules", "lora_modules_to_save"
    targets = _texts(source.value(key))
    if not targets:
        comment = "PEFT's choice for models such as Llama and Qwen; ours is all linear layers"
        out.set(f"{section}.target", list(_PEFT_TARGETS), key, comment=comment)
        out.differs(
            key,
            f"unset, PEFT chooses by architecture: {' and '.join(_PEFT_TARGETS)} for Llama, Mistral, Gemma and Qwen, "
            "which are set. For another one name its modules, or leave it out for all linear layers",
        )
    elif targets != [_ALL_LINEAR]:
        out.set(f"{section}.target", targets, key)
    else:
        out.nothing(key, "the default: all linear layers but the output head")
    if saved := _texts(source.value(saved_key)):
        out.set(f"{section}.modules_to_save", saved, saved_key)
    else:
        out.nothing(saved_key, "none")


def _set_stacks(source: SourceOptions, out: Outcome, name: str) -> None:
    key = "lora_target_parameters"
    if not (targets := _texts(source.value(key))):
        out.nothing(key, "none")
    elif name == "dora":
        out.missing(
            key, "lengths of rows are not trained beside stacks of experts: leave use_dora out"
        )
    else:
        out.set(f"actor.{name}.target_parameters", targets, key)
        if name == "lora":
            out.set("actor.lora.serve", "merged", key)


def _texts(value: Value) -> list[str]:
    """Return the texts of a key that takes one or several."""
    if isinstance(value, list):
        return [str(entry) for entry in value]
    return [str(value)] if value else []
