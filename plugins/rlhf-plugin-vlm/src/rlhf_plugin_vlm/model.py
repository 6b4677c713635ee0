"""The component ``vlm``: which family the model of a path belongs to."""

from __future__ import annotations

from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from rlhf_core import ConfigError, headline
from rlhf_core.media import ImageTokens
from rlhf_torch.vision.family import VisionFamily

from .config import VlmConfig
from .families import FAMILIES


class ImageTextModel:
    """Implements ``rlhf_core.contracts.VisionModel``, and ``rlhf_torch.vision.family.TorchVision``."""

    def __init__(self, config: VlmConfig) -> None:
        self._config = config

    def image_tokens(self, model_path: str, *, trust_remote_code: bool) -> ImageTokens:
        """Return how the model of a folder or hub name writes images as tokens.

        Raises:
            ConfigError: the model reads no images, its family is unknown, or its processor is another model's.
        """
        return self.family(model_path, trust_remote_code=trust_remote_code).tokens

    def family(self, model_path: str, *, trust_remote_code: bool) -> VisionFamily:
        """Return what the model of a folder or hub name needs.

        Raises:
            ConfigError: the model reads no images, its family is unknown, or its processor is another model's.
        """
        try:
            config = AutoConfig.from_pretrained(model_path, trust_remote_code=trust_remote_code)
        except Exception as error:  # Transformers checks little of what the files hold
            raise ConfigError(
                f"model {model_path}: config.json cannot be read: {headline(error)}",
                code="model/unreadable-config",
            ) from error
        kind = str(config.model_type)
        # Some families have no vision_config, such as Chameleon.
        is_other = kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and kind not in FAMILIES
        if getattr(config, "vision_config", None) is None and not is_other:
            raise ConfigError(
                f"--model.vision vlm: the model {model_path} ({kind}) reads text alone; choose a model that reads "
                "images, or leave the option out",
                code="model/reads-text-alone",
            )
        if kind not in FAMILIES:
            raise ConfigError(
                f"--model.vision vlm: the model {model_path} is of the family {kind}; expected one of "
                f"{', '.join(sorted(FAMILIES))}",
                code="model/unknown-family",
            )
        if self._config.tiled is not None and kind != "llava_onevision":
            raise ConfigError(
                f"--model.vlm.tiled: the model {model_path} is of the family {kind}, which sees an image in one way "
                "however many there are; leave it out",
                code="image/not-tiled",
            )
        return FAMILIES[kind](model_path, config, self._config, trust_remote_code=trust_remote_code)
