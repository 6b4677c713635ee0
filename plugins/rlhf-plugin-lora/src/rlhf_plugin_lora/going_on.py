"""An adapter that continues from a PEFT folder: PEFT's config of it and the folder's tensors in the model's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from peft import LoraConfig
from peft.utils import set_peft_model_state_dict
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core import ConfigError, headline
from rlhf_torch.adapters.fitting import check_fit, check_loaded
from rlhf_torch.adapters.folder import WEIGHTS, AdapterFolder
from rlhf_torch.adapters.stacks import TARGETS, stack_of

from .beginning import KEPT, TOKENS
from .targets import adapted_stacks, check_tied
from .token_rows import TENSOR, TokenRows, embeddings_of

_COPY = "write its path into base_model_name_or_path of adapter_config.json."


def require_fit(folder: AdapterFolder, model: PreTrainedModel) -> None:
    """Refuse a folder of another base, or one that changes a weight which two modules share.

    Raises:
        ConfigError: names the base, or the module that does not fit.
    """
    base = str(model.name_or_path)
    if base:  # a model without files, of which only shapes are counted, has no name
        folder.require_base(base, _COPY)
    check_fit(folder, base or type(model).__name__, model)
    names = [name for name in folder.shapes if not _is_of_base(name)]
    owners = [
        name.partition(".lora_")[0] if ".lora_" in name else name.rpartition(".")[0]
        for name in names
    ]
    check_tied(
        model,
        [name for name in dict.fromkeys(owners) if _has(model, name)],
        f"init_from {folder.path}",
    )


class Adapted(NamedTuple):
    """Modules and stacks that an adapter has factors of, by names in the plain model."""

    modules: list[str]
    stacks: list[str]
    """Parameters of three dimensions."""


def adapted_by(folder: AdapterFolder, model: PreTrainedModel) -> Adapted:
    """Return what the folder has factors of.

    Raises:
        ConfigError: ``target_parameters`` name something else than stacks of the model, or one without factors.
    """
    owners = dict.fromkeys(n.partition(".lora_")[0] for n in folder.shapes if ".lora_" in n)
    targets = folder.config.get(TARGETS) or ()
    modules = dict(model.named_modules())
    stacks = {name: stack_of(name, targets, modules) for name in owners}
    found = Adapted(
        [name for name, stack in stacks.items() if stack is None],
        [stack.name for stack in stacks.values() if stack is not None],
    )
    if without := set(adapted_stacks(model, targets)) - set(found.stacks):
        raise ConfigError(
            f"adapter {folder.path} does not fit its base: {TARGETS} of its config name {min(without)}, for which its "
            "file has no factors",
            code="adapter/no-factors",
        )
    return found


def config_of(folder: AdapterFolder, base: str, dropout: float) -> LoraConfig:
    """Return the config by which PEFT builds the folder's adapter again, to be trained."""
    kept: dict[str, Any] = {key: folder.config[key] for key in KEPT if key in folder.config}
    return LoraConfig(
        task_type="CAUSAL_LM", base_model_name_or_path=base, lora_dropout=dropout, **kept
    )


def load(folder: AdapterFolder, model: PreTrainedModel, names: Sequence[str]) -> None:
    """Copy the folder's tensors into the adapters of these names, rounded to their dtype.

    Raises:
        ConfigError: the folder has other tensors than the adapter, or another embedding than the base.
    """
    base = str(model.name_or_path)
    if any(parameter.is_meta for parameter in model.parameters()):
        return  # shapes alone are counted
    tensors = _tensors(folder)
    if (embeddings := embeddings_of(model)) is not None:
        name, table = embeddings
        _take_rows(folder, name, tensors.pop(f"{name}.{TENSOR}", None), table, names)
    for name in filter(_is_of_base, list(tensors)):
        _require_same(folder, name, tensors.pop(name), model)
    for adapter in names:
        try:
            found = set_peft_model_state_dict(model, dict(tensors), adapter_name=adapter)
        except (KeyError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"adapter {folder.path} cannot be read into {base}: {headline(error)}",
                code="adapter/does-not-fit",
            ) from error
        if found.unexpected_keys:
            raise ConfigError(
                f"adapter {folder.path} does not fit {base}: its file has {found.unexpected_keys[0]}, and no module "
                "that its config names has such a tensor",
                code="adapter/does-not-fit",
            )
    check_loaded(folder, base, model)


def _take_rows(
    folder: AdapterFolder, name: str, rows: Tensor | None, table: TokenRows, names: Sequence[str]
) -> None:
    for adapter in names:
        own = table.trainable_tokens_delta[adapter]
        if rows is None or own.shape != rows.shape:
            held = "none" if rows is None else str(tuple(rows.shape))
            raise ConfigError(
                f"adapter {folder.path} does not fit its base: by {TOKENS} of its config {name} has trained rows "
                f"{tuple(own.shape)}; its file has {held}",
                code="adapter/other-rows",
            )
        own.data.copy_(rows)


def _tensors(folder: AdapterFolder) -> dict[str, Tensor]:
    with safe_open(str(folder.path / WEIGHTS), framework="pt") as file:
        return {name: file.get_tensor(folder.name_in_file(name)) for name in folder.shapes}


def _require_same(folder: AdapterFolder, name: str, tensor: Tensor, model: nn.Module) -> None:
    held = model.get_parameter(name)
    if not torch.equal(tensor.to(held), held):
        raise ConfigError(
            f"adapter {folder.path}: its file has {name}, and other numbers than the base {folder.base}, which an "
            "adapter leaves as it is. Give the base that it was trained on.",
            code="adapter/other-base",
        )


def _is_of_base(name: str) -> bool:
    """Return whether a tensor is one of the base's own, which PEFT writes beside the factors of embeddings."""
    return ".base_layer." in name and ".lora_" not in name


def _has(model: nn.Module, name: str) -> bool:
    return any(name == each for each, _ in model.named_modules())
