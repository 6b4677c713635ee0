"""Merging of an adapter into a loaded model, in the model's precision, and the proof that nothing else changed.

PEFT's own merge computes ``W + scale * B A`` (and DoRA's magnitudes) in place. Two things it leaves to the caller: a
matrix that embedding and head share must not be changed for both where the adapter changes one, and the result has to
be compared with what the base computes with the adapter.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core import ConfigError, PluginError

from .fitting import check_fit, check_loaded, peft_model
from .folder import AdapterFolder
from .older_names import in_own_names
from .stacks import UNMATCHED

TOLERANCE = 1e-4
"""Largest allowed difference of outputs in float32, relative to the largest one; a wrong merge differs by far more."""
_PROBE = 12
TIE = "tie_word_embeddings"
"""Entry of configurations, which those of some families lack."""


def merge_adapter(model: PreTrainedModel, base: str, folder: AdapterFolder) -> PreTrainedModel:
    """Return the model, with the adapter merged into its weights.

    Where the merge makes embedding and head differ that were one matrix, the config says so from then on
    (``tie_word_embeddings`` is off).

    Args:
        model: the untouched base with float32 weights, so that a sum is rounded only when it is cast afterwards.
        base: folder or hub name of the base, for messages.

    Raises:
        ConfigError: the adapter does not fit the model, cannot be merged, or makes weights that are not finite.
        MissingDependency: PEFT is not installed.
        PluginError: the merged model computes something else than the base with the adapter.
    """
    with in_own_names(folder, model) as (named, path):
        return _merged(model, base, named, path)


def _merged(
    model: PreTrainedModel, base: str, folder: AdapterFolder, path: Path
) -> PreTrainedModel:
    """Return the model with the adapter merged, whose files are in a folder of their own if they had other names."""
    kind = peft_model(folder)
    check_fit(folder, base, model)
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with warnings.catch_warnings():
            # PEFT advises against adapters of a matrix that embedding and head share, which are separated below.
            warnings.simplefilter("ignore", UserWarning)
            warnings.filterwarnings("ignore", UNMATCHED)
            wrapped = kind.from_pretrained(model, str(path)).eval()
            check_loaded(folder, base, wrapped)
            expected = _outputs(wrapped, model)
            _separate_shared(wrapped)
            merged: PreTrainedModel = wrapped.merge_and_unload(safe_merge=True)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,
        NotImplementedError,
    ) as error:
        raise ConfigError(
            f"adapter {folder.path} ({folder.config['peft_type']}) cannot be merged into {base}: {error}",
            code="adapter/not-mergeable",
        ) from error
    settle_ties(merged)
    actual = _outputs(merged, merged)
    merged.set_attn_implementation(own)
    scale = expected.abs().max().clamp_min(1e-6)
    difference = float((actual - expected).abs().max() / scale)
    if not difference <= TOLERANCE:
        raise PluginError(
            f"adapter {folder.path}: the merged model's outputs differ from those of {base} with the adapter by "
            f"{difference:.2g} of the largest one (allowed: {TOLERANCE:g}), so this adapter cannot be merged exactly",
            code="adapter/wrong-merge",
        )
    return merged


def is_quantized(config: Any) -> bool:
    """Return whether a model of this configuration holds its linear layers in fewer bits."""
    return getattr(config, "quantization_config", None) is not None


def refuse_quantized(base: str, config: Any) -> None:
    """Refuse a base whose weights are quantized: no sum with an adapter can be written in their format.

    Raises:
        ConfigError: the config has a ``quantization_config``.
    """
    if is_quantized(config):
        raise ConfigError(
            f"base {base}: its weights are quantized (quantization_config in config.json), and a merge would have to "
            "round them again. Give the base that is not quantized.",
            code="adapter/quantized-base",
        )


def cast_back(model: PreTrainedModel, dtypes: Mapping[str, torch.dtype]) -> None:
    """Round each weight and buffer to the dtype that it has in the base's files."""
    usual = max(dtypes.values(), key=list(dtypes.values()).count)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        dtype = dtypes.get(name, usual if isinstance(tensor, torch.nn.Parameter) else tensor.dtype)
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    model.config.dtype = usual


@torch.inference_mode()
def _outputs(model: nn.Module, base: PreTrainedModel) -> Tensor:
    """Return the logits of a few tokens."""
    embeddings = base.get_input_embeddings()
    tokens = (torch.arange(_PROBE) * 7919 + 13) % embeddings.weight.shape[0]
    logits: Tensor = model(input_ids=tokens[None].to(base.device), use_cache=False).logits
    return logits.float()


def _separate_shared(wrapped: nn.Module) -> None:
    """Give each adapted layer a matrix of its own where it shares one with another module."""
    weights = [module._parameters.get("weight") for module in wrapped.modules()]
    owners = Counter(weight.data_ptr() for weight in weights if weight is not None)
    for module in wrapped.modules():
        layer: Any = module._modules.get("base_layer")
        weight = None if layer is None else layer._parameters.get("weight")
        if weight is not None and owners[weight.data_ptr()] > 1:
            layer.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)


def settle_ties(model: PreTrainedModel) -> bool:
    """Share the matrix of embedding and head again if the two are equal; else note in the config that they differ.

    Returns:
        Whether the config tied two that differ.
    """
    head = model.get_output_embeddings()
    configs = [model.config.get_text_config(), model.config]
    if head is None or not any(getattr(each, TIE, False) for each in configs):
        return False
    embeddings = model.get_input_embeddings()
    if torch.equal(embeddings.weight, head.weight):
        head.weight = embeddings.weight
        return False
    for each in configs:
        setattr(each, TIE, False)
    return True
