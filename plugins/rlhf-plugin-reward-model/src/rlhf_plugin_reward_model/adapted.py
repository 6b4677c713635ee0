"""Reward models that are a PEFT folder: an adapter and a head, merged into the base that the folder names.

Where the adapter was trained beside a base in 4 bits, as the folder's config.json says, it stands beside such a base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, BitsAndBytesConfig, PreTrainedModel

from rlhf_core import ConfigError, MissingDependency
from rlhf_torch.adapters.beside import put_beside
from rlhf_torch.adapters.folder import AdapterFolder, is_adapter, read_adapter
from rlhf_torch.adapters.merging import cast_back, is_quantized, merge_adapter, refuse_quantized

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
            "adapter of a language model is no reward model.",
            code="reward-model/unusable",
        )
    return AdaptedModel(folder, folder.named_base())


def config_of(options: ModelFiles, model: AdaptedModel) -> Any:
    """Return the folder's own config.json, which ``rlhf rm`` writes, or else the base's."""
    own = (model.folder.path / "config.json").is_file()
    return AutoConfig.from_pretrained(
        options.path if own else model.base, trust_remote_code=options.trust_remote_code
    )


def quantization_of(options: ModelFiles, model: AdaptedModel, config: Any) -> dict[str, Any] | None:
    """Take from a configuration how the base was quantized in training, and return it; None: it was not.

    The configuration then has what the files of the base say, which may be quantized already.
    """
    taken = config.__dict__.pop("quantization_config", None)
    if taken is None:
        return None
    files = AutoConfig.from_pretrained(model.base, trust_remote_code=options.trust_remote_code)
    if is_quantized(files):
        config.quantization_config = files.quantization_config
    return dict(taken)


def beside(
    model: AdaptedModel,
    load: Callable[..., PreTrainedModel],
    dtype: torch.dtype,
    quantization: Mapping[str, Any],
    head: str,
) -> PreTrainedModel:
    """Return the classifier whose base is in 4 bits, with the adapter and the head beside it.

    Args:
        load: loads the base as a classifier, from a path, in a dtype, with further arguments of ``from_pretrained``.
        quantization: result of ``quantization_of``.
        head: name of the head, which is not quantized.

    Raises:
        ConfigError: the adapter does not fit the base.
        MissingDependency: PEFT or bitsandbytes is not installed.
    """
    if find_spec("bitsandbytes") is None:
        raise MissingDependency(
            f"reward model {model.folder.path}: it was trained beside a base in 4 bits, which needs bitsandbytes.\n"
            "  pip install 'rlhf-plugin-reward-model[qlora]'"
        )
    how = BitsAndBytesConfig.from_dict(
        {
            **quantization,
            "bnb_4bit_compute_dtype": dtype,
            "llm_int8_skip_modules": [*(quantization.get("llm_int8_skip_modules") or ()), head],
        }
    )
    base = load(model.base, dtype, quantization_config=how)
    return classifier_beside(base.eval(), model, head)


def classifier_beside(base: PreTrainedModel, model: AdaptedModel, head: str) -> PreTrainedModel:
    """Return a classifier with the adapter in its layers, and the adapter's head as its own: a plain linear layer,
    which can score any token.

    Raises:
        ConfigError: the adapter does not fit the base.
        MissingDependency: PEFT is not installed.
    """
    classifier = put_beside(base, model.base, model.folder)
    wrapper: Any = getattr(classifier, head)
    setattr(classifier, head, wrapper.modules_to_save[wrapper.active_adapter])
    return classifier


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
