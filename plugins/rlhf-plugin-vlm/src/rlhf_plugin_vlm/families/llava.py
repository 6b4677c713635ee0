"""LLaVA: the same number of tokens for each image, ``<image>`` alone, and positions as in text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from rlhf_core import ConfigError
from rlhf_core.media import MediaRef, MediaSpan
from rlhf_torch.vision.family import Features, Picture

from ..config import VlmConfig
from .loading import load_image_processor, load_image_text_model

if TYPE_CHECKING:
    from PIL.Image import Image


class EqualTokens:
    """Implements ``rlhf_core.media.ImageTokens``: as many markers for each image, whatever its size.

    Args:
        count: number of an image's features.
    """

    def __init__(self, marker_id: int, count: int) -> None:
        self.marker_id = marker_id
        self.never_sampled = (marker_id,)
        self._count = count

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        """Return the tokens of an image."""
        return (self.marker_id,) * self._count


class Llava:
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for LLaVA 1.5 and what has its architecture.

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's, or an option is for other families.
    """

    def __init__(
        self, path: str, config: Any, options: VlmConfig, *, trust_remote_code: bool
    ) -> None:
        if options.min_pixels is not None or options.max_pixels is not None:
            raise ConfigError(
                f"--model.vlm.max_pixels: the model {path} (llava) sees all images at one size; leave min_pixels and "
                "max_pixels out"
            )
        self._path = path
        self._processor = load_image_processor(path, trust_remote_code=trust_remote_code)
        vision = config.vision_config
        size = self._size()
        if size != (vision.image_size, vision.image_size):
            raise ConfigError(
                f"model {path}: its image processor makes images of {size[1]} x {size[0]} pixels, and the model reads "
                f"{vision.image_size} x {vision.image_size}; expected the processor that belongs to the model"
            )
        side = vision.image_size // vision.patch_size
        # The strategy "full" keeps the feature of the whole image, which stands before those of its parts.
        self._more = int(config.vision_feature_select_strategy == "full")
        self._side = side
        self.feature_id = int(config.image_token_id)
        self._check_tokenizer(trust_remote_code=trust_remote_code)
        self.tokens = EqualTokens(self.feature_id, side * side + self._more)

    def load(self, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
        """Return the Transformers model, and the information on its loading."""
        return load_image_text_model(self._path, **options)

    def picture(self, image: Image) -> Picture:
        """Return an RGB image at the model's size."""
        made = self._processor(images=[image], return_tensors="pt")
        grid = (1, self._side**2 + 1) if self._more else (self._side, self._side)
        return Picture(inputs={"pixel_values": made["pixel_values"]}, grid=grid)

    def tower(self, model: PreTrainedModel) -> nn.Module:
        """Return the vision tower; the projector behind it is trained with the text model."""
        tower: nn.Module = model.base_model.vision_tower
        return tower

    def text_model(self, model: PreTrainedModel) -> nn.Module:
        """Return the model between embeddings and output head."""
        text: nn.Module = model.base_model.language_model
        return text

    def features(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> Features:
        """Return the features of pictures, one picture's after the other's."""
        tower = next(self.tower(model).parameters())
        pixels = torch.cat([picture.inputs["pixel_values"] for picture in pictures])
        found = model.base_model.get_image_features(
            pixels.to(tower.device, tower.dtype), return_dict=True
        )
        return Features(torch.cat(list(found.pooler_output)))

    def layer_inputs(self, features: Features, places: Tensor, num_tokens: int) -> dict[str, Any]:
        """Return nothing: features enter in the place of embeddings alone."""
        return {}

    def positions(
        self, num_tokens: int, spans: Sequence[MediaSpan], pictures: Sequence[Picture]
    ) -> Tensor:
        """Return positions (T,), which count tokens whatever they stand for."""
        return torch.arange(num_tokens)

    def save(self, folder: Path) -> None:
        """Write the image processor's file beside an exported model."""
        self._processor.save_pretrained(folder)

    def _size(self) -> tuple[int, int]:
        """Return height and width of the images that the processor makes."""
        crop = getattr(self._processor, "crop_size", None) or self._processor.size
        return int(crop["height"]), int(crop["width"])

    def _check_tokenizer(self, *, trust_remote_code: bool) -> None:
        tokenizer = AutoTokenizer.from_pretrained(self._path, trust_remote_code=trust_remote_code)
        found = tokenizer.convert_tokens_to_ids("<image>")
        if found != self.feature_id:
            raise ConfigError(
                f"model {self._path}: its tokenizer has <image> as {found}, and config.json as {self.feature_id}; "
                "expected the tokenizer that belongs to the model"
            )
