"""An adapter read from a PEFT folder into a model, to be computed beside the base and not trained."""

from __future__ import annotations

import warnings
from pathlib import Path

from transformers import PreTrainedModel

from rlhf_core import ConfigError, headline

from .fitting import check_fit, check_loaded, peft_model
from .folder import AdapterFolder
from .older_names import in_own_names
from .stacks import UNMATCHED

LOW_RANK = "LORA"
"""PEFT's name for the kind of adapter (LoRA, DoRA) that is in the model's own layers, and so in every pass."""


def put_beside(model: PreTrainedModel, base: str, folder: AdapterFolder) -> PreTrainedModel:
    """Return the model, in whose layers the adapter is from now on, in their dtype and without gradients.

    The base's layers may be in 4 bits.

    Args:
        model: the base; its parameters stay as they are.
        base: folder or hub name of the base, for messages.

    Raises:
        ConfigError: the adapter does not fit the model, or PEFT cannot compute it on such layers.
        MissingDependency: PEFT is not installed.
    """
    with in_own_names(folder, model) as (named, path):
        return _beside(model, base, named, path)


def _beside(
    model: PreTrainedModel, base: str, folder: AdapterFolder, path: Path
) -> PreTrainedModel:
    """Return the model with the adapter, whose files are in a folder of their own if they had other names."""
    kind = peft_model(folder)
    check_fit(folder, base, model)
    try:
        with warnings.catch_warnings():
            # PEFT advises against merging into a matrix that embedding and head share; nothing is merged.
            warnings.simplefilter("ignore", UserWarning)
            warnings.filterwarnings("ignore", UNMATCHED)
            wrapped = kind.from_pretrained(model, str(path), autocast_adapter_dtype=False).eval()
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        raise ConfigError(
            f"adapter {folder.path} cannot be read into {base}: {headline(error)}",
            code="adapter/does-not-fit",
        ) from error
    check_loaded(folder, base, wrapped)
    for module in model.modules():
        # On CPUs with bfloat16 instructions bitsandbytes would repack its weights in 4 bits, round what it computes in
        # float32 to bfloat16, and stop at layers whose width is no multiple of 32.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model.requires_grad_(False)
