"""Loading of the base of an adapter: a language model, an image-text model or a sequence classifier, in float32, its
dtypes noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from rlhf_core import ConfigError, headline
from rlhf_data import reach_hub
from rlhf_torch.adapters.folder import CLASSIFIER, AdapterFolder
from rlhf_torch.adapters.merging import refuse_quantized
from rlhf_torch.models.loading import reads_images
from rlhf_torch.models.quantized_files import settle_unpacked, unpacking
from rlhf_torch.models.quiet import errors_only, no_progress_bars

_HEADS = ("score", "classifier")
"""Names of classification heads, which PEFT saves with an adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """The base of an adapter."""

    model: PreTrainedModel
    """The model in float32, in evaluation mode."""
    dtypes: Mapping[str, torch.dtype]
    """Dtype of each weight and buffer in the base's files, or that it was unpacked to."""


def load_base(base: str, folder: AdapterFolder, *, trust_remote_code: bool) -> BaseModel:
    """Return the base of an adapter, with weights unpacked that its files hold in MXFP4 or FP8.

    Raises:
        ConfigError: the base cannot be read, is quantized in another way, or lacks weights that the adapter does not
            bring.
    """
    config = _config(base, trust_remote_code)
    unpacked = unpacking(base, {})
    if not unpacked:
        refuse_quantized(base, config)
    options: dict[str, Any] = {"config": config, **unpacked}
    kind = AutoModelForImageTextToText if reads_images(config) else AutoModelForCausalLM
    if _is_classifier(folder, config):
        kind = AutoModelForSequenceClassification
        if labels := _labels(folder):
            config.num_labels = labels
    try:
        with errors_only(), no_progress_bars():  # The error below names missing weights.
            model, info = kind.from_pretrained(
                base,
                **options,
                dtype="auto",
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                use_safetensors=True,  # the other format is a pickle, which can run code
            )
    except Exception as error:  # Transformers checks little of what the files hold
        raise ConfigError(
            f"base {base}: cannot be loaded: {headline(error)}", code="model/unreadable"
        ) from error
    if lacking := sorted(set(info["missing_keys"]) - folder.shapes.keys()):
        raise ConfigError(
            f"base {base}: its weights have no {lacking[0]}, and the adapter does not bring it; expected the weights "
            f"of a whole {type(model).__name__}",
            code="model/weights-missing",
        )
    if unpacked:
        settle_unpacked(base, model, model.dtype)
    dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    return BaseModel(model=model.float().eval(), dtypes=dtypes)


def _config(base: str, trust_remote_code: bool) -> Any:
    reach_hub(base)
    try:
        return AutoConfig.from_pretrained(base, trust_remote_code=trust_remote_code)
    except Exception as error:  # Transformers checks little of what the files hold
        raise ConfigError(
            f"base {base}: expected a Transformers folder or hub name: {headline(error)}",
            code="model/unreadable",
        ) from error


def _is_classifier(folder: AdapterFolder, config: Any) -> bool:
    names = getattr(config, "architectures", None) or [""]
    return folder.config.get("task_type") == CLASSIFIER or names[0].endswith(
        "ForSequenceClassification"
    )


def _labels(folder: AdapterFolder) -> int | None:
    """Return the number of scores that the adapter's own head gives; None where it brings no head."""
    for name in _HEADS:
        if shape := folder.shapes.get(f"{name}.weight"):
            return shape[0]
    return None
