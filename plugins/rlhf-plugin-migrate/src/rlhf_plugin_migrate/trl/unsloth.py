"""Arguments that Unsloth's scripts give ``FastLanguageModel`` and its like, as keys of TRL's scripts."""

from __future__ import annotations

import ast

from .arguments import arguments_of, called, shown
from .names import Names
from .script_keys import PythonScript

_POSITIONS = ("model_name", "max_seq_length", "dtype", "load_in_4bit")
_LOADED = {
    "model_name": "model_name_or_path",
    "dtype": "dtype",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "trust_remote_code": "trust_remote_code",
    "revision": "model_revision",
    "fast_inference": "use_vllm",
    "gpu_memory_utilization": "vllm_gpu_memory_utilization",
}
"""Argument of ``from_pretrained`` -> key of TRL's scripts."""
_ADAPTED = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    **{name: name for name in ("lora_alpha", "lora_dropout", "use_rslora")},
}
"""Argument of ``get_peft_model`` -> key of TRL's scripts."""
_DEFAULTS: dict[str, object] = {
    "use_peft": True,
    "lora_r": 16,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
}
"""Unsloth's defaults of an adapter."""
_WITHOUT_EFFECT = frozenset(
    {
        *(
            "max_lora_rank",
            "token",
            "device_map",
            "random_state",
            "full_finetuning",
            "load_in_16bit",
        ),
        *(
            "bias",
            "loftq_config",
            "use_gradient_checkpointing",
            "max_seq_length",
            "unsloth_vllm_standby",
        ),
        *("float8_kv_cache", "offload_embedding", "argument 1"),
    }
)
_LAYERS = frozenset(
    f"finetune_{part}"
    for part in ("vision_layers", "language_layers", "attention_modules", "mlp_modules")
)


class Unsloth:
    """The model that a script loads by Unsloth, and the adapter that it puts on it."""

    def __init__(self, names: Names) -> None:
        self._names = names
        own = [call for call in names.calls if self._is_own(call)]
        self._loads = [call for call in own if called(call) == "from_pretrained"]
        self._adapters = [call for call in own if called(call) == "get_peft_model"]
        self.is_used = len(self._loads) == 1 and len(self._adapters) <= 1
        """True if the text shows which model it is."""
        self.has_own_template = any(called(call) == "get_chat_template" for call in names.calls)
        """True if the tokenizer gets another chat template."""

    def _is_own(self, call: ast.Call) -> bool:
        of = call.func.value if isinstance(call.func, ast.Attribute) else None
        return isinstance(of, ast.Name) and self._names.modules.get(of.id, "").startswith(
            "unsloth."
        )

    def set(self, out: PythonScript) -> None:
        """Set the keys of the model and its adapter."""
        out.keys["dtype"] = "auto"
        (load,) = self._loads
        given = arguments_of(load, _POSITIONS, self._names)
        for key, value in given:
            if key in _LOADED:
                out.set(_LOADED[key], value)
            elif key == "max_seq_length":
                out.set("vllm_max_model_length" if out.script == "grpo" else "max_length", value)
            elif key not in _WITHOUT_EFFECT:
                out.leave_out(f"model, {key}", value)
        for adapter in self._adapters:
            out.keys |= _DEFAULTS
            out.keys["load_in_4bit"] = out.keys.get("load_in_4bit", True)
            for key, value in arguments_of(adapter, (), self._names):
                if key in _ADAPTED:
                    out.set(_ADAPTED[key], value)
                elif key in _LAYERS and shown(value) == "True":
                    continue
                elif key in _LAYERS:
                    why = "choose modules by actor.lora.target and actor.lora.exclude"
                    out.leave_out(f"get_peft_model, {key}", value, why)
                elif key not in _WITHOUT_EFFECT:
                    out.leave_out(f"get_peft_model, {key}", value)
        if not self._adapters:
            out.keys.pop("load_in_4bit", None)
        if out.script == "grpo":
            self._set_batch(out, load)

    def _set_batch(self, out: PythonScript, load: ast.Call) -> None:
        """Set the batch size as Unsloth does: at least one group."""
        size, group, parts = (
            out.keys.get(key, default)
            for key, default in (
                ("per_device_train_batch_size", 8),
                ("num_generations", 8),
                ("gradient_accumulation_steps", 1),
            )
        )
        if not (isinstance(size, int) and isinstance(group, int) and isinstance(parts, int)):
            return
        if group > 0 and size * parts % group:
            out.keys["per_device_train_batch_size"] = group
            why = f"Unsloth takes num_generations = {group} for it, since a batch has whole groups"
            written = ast.copy_location(ast.Constant(size), load)
            out.leave_out("per_device_train_batch_size", written, why)
