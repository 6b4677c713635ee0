"""The question in which form an engine gets a model with an adapter: factors beside the base, or merged weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlhf_config import Selection
from rlhf_core import ConfigError
from rlhf_core.capabilities import SERVES_ADAPTERS, SHARES_WEIGHTS
from rlhf_torch.adapters.factors import largest_rank, not_plain
from rlhf_torch.adapters.fitting import check_fit
from rlhf_torch.adapters.folder import AdapterFolder, read_adapter
from rlhf_torch.adapters.merging import is_quantized
from rlhf_torch.adapters.older_names import in_names_of
from rlhf_torch.models.quantized_files import is_unpacked

from .model_source import config_of
from .options import ModelToServe


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterForm:
    """Form in which an engine gets a model with an adapter."""

    folder: AdapterFolder
    rank: int | None
    """Largest rank of the factors that are served beside the base's weights; None: the adapter is merged into them."""
    why: str
    """Reason for the form, for the start line."""

    def __str__(self) -> str:
        where = "merged into the weights" if self.rank is None else "beside the base's weights"
        return f"adapter {self.folder.path}: {where} ({self.why})"


def form_of(model: ModelToServe, engine: Selection) -> AdapterForm | None:
    """Return the form in which an engine gets the model's adapter; None without an adapter. No weight is read.

    Raises:
        ConfigError: the adapter cannot be read or does not fit the base, or ``model.serve`` asks for a form that it
            cannot have.
    """
    if model.adapter is None:
        return None
    folder = read_adapter(model.adapter)
    folder.require_base(
        model.path, f"merge them: rlhf merge --same-base {model.path} {folder.path} OUT"
    )
    config = config_of(model)
    if model.quantize != "none":
        return _beside_quantized(model, engine, folder, f"--model.quantize {model.quantize}")
    if is_quantized(config) and not is_unpacked(model.path):
        return _beside_quantized(model, engine, folder, "quantization_config in config.json")
    if model.serve == "merged":
        return AdapterForm(folder=folder, rank=None, why="--model.serve merged")
    skeleton = _skeleton(model, config)
    folder = in_names_of(skeleton, folder)
    reason = _why_not_beside(engine, folder, skeleton)
    if reason is None:
        why = "plain LoRA, which the engine serves" if model.serve == "auto" else "as asked for"
        return AdapterForm(folder=folder, rank=largest_rank(folder), why=why)
    if model.serve == "adapter":
        raise ConfigError(
            f"--model.serve adapter: {folder.path} cannot be served beside the base's weights: {reason}. Leave the "
            "option out, or set --model.serve merged.",
            code="adapter/not-beside-base",
        )
    return AdapterForm(folder=folder, rank=None, why=reason)


def _beside_quantized(
    model: ModelToServe, engine: Selection, folder: AdapterFolder, by: str
) -> AdapterForm:
    """Return the only form that an adapter of a quantized base has: in the model that the engine shares.

    Args:
        by: what says that it is quantized, for messages.
    """
    if model.serve == "merged":
        raise ConfigError(
            f"--model.serve merged: the weights of {model.path} are quantized ({by}); "
            "a merge would round them again. Set --model.serve adapter.",
            code="adapter/merge-of-quantized",
        )
    if SHARES_WEIGHTS not in engine.registered.component.provides:
        raise ConfigError(
            f"--model.adapter {folder.path}: the weights of {model.path} are quantized ({by}), and the engine "
            f"{engine.registered.name} gets plain weights. Choose an engine that computes with the model as it is "
            "loaded, such as --engine embedded.",
            code="adapter/not-servable",
        )
    ranks = [shape[0] for name, shape in folder.shapes.items() if ".lora_A" in name]
    return AdapterForm(
        folder=folder, rank=max(ranks, default=1), why=f"the base is quantized: {by}"
    )


def _why_not_beside(
    engine: Selection, folder: AdapterFolder, skeleton: PreTrainedModel
) -> str | None:
    if SERVES_ADAPTERS not in engine.registered.component.provides:
        return f"the engine {engine.registered.name} serves no adapters"
    if (reason := not_plain(folder, skeleton)) is not None:
        return reason
    check_fit(folder, str(skeleton.name_or_path), skeleton)
    return None


def _skeleton(model: ModelToServe, config: Any) -> PreTrainedModel:
    """Return the model without weights, on torch's ``meta`` device."""
    try:
        with torch.device("meta"):
            skeleton: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, trust_remote_code=model.trust_remote_code
            )
    except Exception as error:  # Transformers checks little of what the files hold
        raise ConfigError(
            f"model {model.path}: not a causal language model that can be built: {error}",
            code="model/unknown-family",
        ) from error
    skeleton.name_or_path = model.path
    return skeleton
