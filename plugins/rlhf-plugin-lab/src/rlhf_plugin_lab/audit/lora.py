"""Adapters of low rank in PEFT's folders, merged into their base: W' = W + s B A."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core import ConfigError
from rlhf_core.lazy import torch
from rlhf_core.outside.json_reader import read_object

from .changed import shared_copy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_BEFORE = "base_model.model."
_UNKNOWN = (
    "use_dora",
    "modules_to_save",
    "trainable_token_indices",
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "megatron_config",
    "target_parameters",
)
"""Settings that must be off: their weights are not W + s B A with one s."""


def adapter_config(folder: Path) -> dict[str, Any]:
    """Return the settings of an adapter.

    Raises:
        ConfigError: they are no settings of a plain LoRA.
    """
    values = read_object(folder / CONFIG, "the adapter_config.json of an exported adapter")
    used = [name for name in _UNKNOWN if values.get(name)]
    if values.get("peft_type") != "LORA" or used:
        raise ConfigError(
            f"rlhf audit: {folder} is an adapter of {values.get('peft_type')} with {', '.join(used) or 'no options'}; "
            "expected plain LoRA. Merge it: rlhf merge, and name the merged folder",
            code="adapter/does-not-fit",
        )
    return values


def merged(base: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return a copy of a base with an adapter added, s = alpha / rank, or alpha / sqrt(rank) with rslora.

    Raises:
        ConfigError: the folder's weights are missing, or are not of the base.
    """
    values = adapter_config(folder)
    if not (folder / _WEIGHTS).is_file():
        raise ConfigError(
            f"rlhf audit: expected {_WEIGHTS} in {folder}; it is not there. Export the adapter again",
            code="adapter/does-not-fit",
        )
    from safetensors.torch import load_file

    tensors = load_file(folder / _WEIGHTS)
    rank = float(values["r"])
    scale = float(values["lora_alpha"]) / (math.sqrt(rank) if values.get("use_rslora") else rank)
    changed = shared_copy(base)
    modules = dict(changed.named_modules())
    for name, low in tensors.items():
        if not name.endswith(".lora_A.weight"):
            continue
        path = name.removeprefix(_BEFORE).removesuffix(".lora_A.weight")
        layer = modules.get(path)
        if not isinstance(layer, torch.nn.Linear):
            raise ConfigError(
                f"rlhf audit: {folder} has weights for {path}, which is no linear layer of the base; name the base "
                f"that it was made for in base_model_name_or_path of {CONFIG}",
                code="adapter/does-not-fit",
            )
        high = tensors[name.replace("lora_A", "lora_B")]
        delta = scale * (high.float() @ low.float())
        if values.get("fan_in_fan_out"):
            delta = delta.T
        layer.weight = torch.nn.Parameter(layer.weight.data + delta, requires_grad=False)
    return changed


def between(base: PreTrainedModel, model: PreTrainedModel, factor: float) -> PreTrainedModel:
    """Return a copy of a base with ``factor`` times a model's difference from it."""
    changed, own = shared_copy(base), dict(base.named_parameters())
    modules = dict(changed.named_modules())
    for name, weight in model.named_parameters():
        if weight is own[name]:
            continue
        path, _, last = name.rpartition(".")
        value = own[name].data + factor * (weight.data - own[name].data)
        setattr(modules[path], last, torch.nn.Parameter(value, requires_grad=False))
    return changed
