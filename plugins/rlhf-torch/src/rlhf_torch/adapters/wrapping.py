"""A model with PEFT's layers in it, which compute the adapter beside the base's weights."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from rlhf_core import ConfigError, MissingDependency

from .fitting import check_fit
from .folder import AdapterFolder


def peft_model(folder: AdapterFolder) -> Any:
    """Return the class ``PeftModel``.

    Raises:
        MissingDependency: PEFT is not installed.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise MissingDependency(
            f"adapter {folder.path}: it needs peft.\n  pip install 'rlhf-plugin-inference[peft]'"
        ) from error
    return PeftModel


def put_beside(model: PreTrainedModel, base: str, folder: AdapterFolder) -> PreTrainedModel:
    """Return the model with the adapter in it, unmerged; factors have the dtype of the layer that they stand beside.

    Args:
        base: folder or hub name of the model, for messages.

    Raises:
        ConfigError: the adapter does not fit the model, or PEFT cannot compute it on such layers.
        MissingDependency: PEFT is not installed.
    """
    kind = peft_model(folder)
    check_fit(folder, base, model)
    try:
        wrapped = kind.from_pretrained(model, str(folder.path), autocast_adapter_dtype=False)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        raise ConfigError(
            f"adapter {folder.path} ({folder.config['peft_type']}) cannot be put beside {base}: {error}"
        ) from error
    inner: PreTrainedModel = wrapped.get_base_model()
    for module in inner.modules():
        # On CPUs with bfloat16 instructions bitsandbytes would repack its weights in 4 bits, round what it computes in
        # float32 to bfloat16, and stop at layers whose width is no multiple of 32.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return inner
