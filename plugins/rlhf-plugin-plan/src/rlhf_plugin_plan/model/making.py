"""Transformers' own model of a config.json, without memory, or what is wrong with the file.

Torch is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_core import ConfigError

from .without_numbers import text_of

if TYPE_CHECKING:
    from torch import nn


class Made(NamedTuple):
    """A model on the meta device, in evaluation mode, as backends train it."""

    model: Any
    """Transformers' model; its text model alone where a package for the rest is missing."""
    missing: str | None
    """Sentence that names the missing package, without a full stop; None: the model is whole."""


def meta_model(
    values: Mapping[str, Any], source: str, dtype: str, attention: str | None = None
) -> Made:
    """Return the model of a config.json.

    Args:
        values: of the config.json.
        source: name of the config.json for messages.
        dtype: of the parameters.
        attention: Transformers' name of a function of attention; None: the family's own.

    Raises:
        ConfigError: Transformers refuses the values, the model could not compute with them, or a package is missing.
    """
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    values = {k: v for k, v in values.items() if k != "quantization_config"}
    family = values.pop("model_type")
    sees = family in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    missing = None
    # The attention of parts that hear stays their own.
    own = dict.fromkeys(("text_config", "vision_config"), attention) if attention else None
    options = {"dtype": getattr(torch, dtype)}
    try:
        # Some constructors ask for numbers, which they get on the meta device alone.
        with unset_fake_temporarily(), torch.device("meta"):
            config = AutoConfig.for_model(family, **values)
            if sees:
                try:
                    model = AutoModelForImageTextToText.from_config(
                        config, attn_implementation=own, **options
                    )
                except ImportError as error:
                    missing, config = str(error).strip().split(". ")[0], config.get_text_config()
            if missing or not sees:
                model = AutoModelForCausalLM.from_config(
                    config, attn_implementation=attention, **options
                )
            _require_whole_sections(text_of(model))
    except ImportError as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise ConfigError(
            f"{source}: a model of the family {family} is counted in Transformers' own, which needs a "
            f"package: {reason}",
            code="plan/missing-package",
        ) from error
    except Exception as error:  # of any type: each family checks its values in its own way
        raise refused(
            error, f"{source}: expected the config.json of a model of the family {family}"
        ) from error
    return Made(model.eval(), missing)


def refused(error: Exception, expected: str) -> ConfigError:
    """Return the error of values that Transformers cannot compute with.

    Args:
        error: what Transformers or torch raised.
        expected: name of the config.json, and what was expected of it.
    """
    last = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
    if last.startswith("Padding_idx"):
        last += ": vocab_size or pad_token_id, in text_config if there is one, is missing or another model's"
    return ConfigError(
        f"{expected}; Transformers cannot compute with its values: {last[:300]}",
        code="plan/refused-config",
    )


def _require_whole_sections(text: nn.Module) -> None:
    """Refuse sections of rotary embeddings, one for each axis of positions, that a head's frequencies do not fill.

    Where the family cuts the frequencies by them the model would be made, and could compute nothing.
    """
    import torch

    for module in text.modules():
        sections, frequencies = (
            getattr(module, name, None) for name in ("mrope_section", "inv_freq")
        )
        if sections is None or frequencies is None or sum(sections) == len(frequencies):
            continue
        try:
            module(torch.empty(1, 1, 1), torch.zeros(3, 1, 1, dtype=torch.int64))
        except Exception as error:  # others, such as Qwen3.5, take as many as there are
            raise ValueError(
                f"mrope_section {list(sections)} divides {sum(sections)} frequencies of rotary embeddings, and a head "
                f"has {len(frequencies)}: head_dim in text_config, or partial_rotary_factor in its rope_parameters, is "
                "missing or another model's"
            ) from error
