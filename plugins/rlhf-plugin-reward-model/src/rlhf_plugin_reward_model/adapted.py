"""Reward models that are a PEFT folder: an adapter and a head, merged into the base that the folder names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, PreTrainedModel

from rlhf_core import ConfigError
from rlhf_torch.adapters.folder import AdapterFolder, is_adapter, read_adapter
from rlhf_torch.adapters.merging import cast_back, merge_adapter, refuse_quantized

from .config import ModelFiles


class AdaptedModel(NamedTuple):
    """A PEFT folder and its base."""

    folder: AdapterFolder
    base: str
    """Folder or hub name."""


def adapted(options: ModelFiles, head: str) -> AdaptedModel | None:
    """Return the adapter that the path of a reward model is; None for a whole model.

    Args:
        head: name of the head in a Transformers classifier.

    Raises:
        ConfigError: the folder names no base, or has no head of one score, which would be random.
    """
    if not is_adapter(options.path):
        return None
    folder = read_adapter(options.path)
    shape = folder.shapes.get(f"{head}.weight")
    if shape is None or shape[0] != 1:
        found = "it has none" if shape is None else f"it gives {shape[0]}"
        raise ConfigError(
            f"reward model {options.path}: expected an adapter with a head {head!r} that gives one score; {found}. An "
            "adapter of a language model is no reward model."
        )
    return AdaptedModel(folder, folder.named_base())


def config_of(options: ModelFiles, model: AdaptedModel) -> Any:
    """Return the folder's own config.json, which ``rlhf rm`` writes, or else the base's."""
    own = (model.folder.path / "config.json").is_file()
    return AutoConfig.from_pretrained(
        options.path if own else model.base, trust_remote_code=options.trust_remote_code
    )


def merged(
    model: AdaptedModel, load: Callable[[str, torch.dtype], PreTrainedModel], dtype: torch.dtype
) -> PreTrainedModel:
    """Return the classifier of base, adapter and head, summed in float32 and rounded once.

    Args:
        load: loads the base as a classifier, from a path and in a dtype.

    Raises:
        ConfigError: the adapter does not fit the base, or the base is quantized.
        MissingDependency: PEFT is not installed.
    """
    base = load(model.base, torch.float32)
    refuse_quantized(model.base, base.config)
    whole = merge_adapter(base.eval(), model.base, model.folder)
    cast_back(whole, dict.fromkeys(whole.state_dict(), dtype))
    return whole
