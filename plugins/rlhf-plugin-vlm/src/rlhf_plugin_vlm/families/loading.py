"""Processors and tokenizers of image-text models, and the error texts where they cannot be loaded."""

from __future__ import annotations

from typing import Any

from transformers import AutoImageProcessor, AutoModelForImageTextToText, PreTrainedModel

from rlhf_core import ConfigError


def load_image_processor(path: str, *, trust_remote_code: bool) -> Any:
    """Return the image processor of a folder or hub name, which works on images of Pillow.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    try:
        return AutoImageProcessor.from_pretrained(
            path, trust_remote_code=trust_remote_code, backend="pil"
        )
    except Exception as error:  # Transformers checks little of what the files hold
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"model {path}: expected an image processor (preprocessor_config.json); loading it failed: {first_line}"
        ) from error


def load_image_text_model(path: str, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return the image-text model of a path, and the information on its loading."""
    model, info = AutoModelForImageTextToText.from_pretrained(path, **options)
    return model, info


def require_equal(path: str, what: str, processor: Any, model: Any) -> None:
    """Refuse a processor that is another model's.

    Raises:
        ConfigError: a number of the processor is another than the model's.
    """
    if processor != model:
        raise ConfigError(
            f"model {path}: its image processor has {what} {processor}, and the model {model}; expected the processor "
            "that belongs to the model. Copy preprocessor_config.json from the model's own repository."
        )
