"""Plain LoRA, whose low-rank factors an engine can take beside the base's weights: what is plain, and the factors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core import ConfigError

from .fitting import pattern_value, rank_of
from .folder import WEIGHTS, AdapterFolder

_FACTORS = (".lora_A.weight", ".lora_B.weight")
_CHANGES_THE_FORMULA = (
    "use_dora",
    "lora_bias",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "monteclora_config",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "modules_to_save",
)
"""Keys of PEFT's config under which an adapted layer computes something else than W x + s B A x."""
_LEAVES_THE_BASE = (None, True, False, "gaussian")
"""Values of ``init_lora_weights`` with which PEFT does not change the base's weights as it loads an adapter."""


def not_plain(folder: AdapterFolder, model: PreTrainedModel) -> str | None:
    """Return what an adapter is or has beside factors of linear layers inside of the model; None: nothing.

    Args:
        model: the base, whose tensors are not read.
    """
    config = folder.config
    if config["peft_type"] != "LORA":
        return f"it is of the kind {config['peft_type']}"
    for key in _CHANGES_THE_FORMULA:
        if config.get(key):
            return f"its config has {key}"
    if config.get("init_lora_weights") not in _LEAVES_THE_BASE:
        return f"it began as {config['init_lora_weights']}, which changes the base's weights"
    modules = dict(model.named_modules())
    head = model.get_output_embeddings()
    for name in folder.shapes:
        module = modules.get(name.removesuffix(_FACTORS[0]).removesuffix(_FACTORS[1]))
        if not name.endswith(_FACTORS) or not isinstance(module, nn.Linear) or module is head:
            return f"it has {name}, which is no factor of a linear layer inside of the model"
    return None


def largest_rank(folder: AdapterFolder) -> int:
    """Return the largest rank of an adapter's factors."""
    return max(shape[0] for name, shape in folder.shapes.items() if name.endswith(_FACTORS[0]))


def factors(folder: AdapterFolder, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield A (r, in) and s B (out, r) of each adapted module, as ``MODULE.lora_A`` and ``MODULE.lora_B``.

    The scaling s is alpha / r, or alpha / sqrt(r) if the adapter is rank-stabilized; the product is rounded once.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        with safe_open(str(folder.path / WEIGHTS), framework="pt") as tensors:
            for name in folder.shapes:
                tensor: Tensor = tensors.get_tensor(folder.name_in_file(name)).float()
                module = name.removesuffix(_FACTORS[1])
                if module != name:
                    tensor = tensor * _scaling(folder.config, module)
                yield name.removesuffix(".weight"), tensor.to(dtype)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"adapter {folder.path}: cannot be read: {error}", code="adapter/unreadable"
        ) from error


def _scaling(config: Mapping[str, Any], module: str) -> float:
    rank = rank_of(config, module)
    alpha = float(pattern_value(config.get("alpha_pattern"), module, config.get("lora_alpha", 1)))
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
