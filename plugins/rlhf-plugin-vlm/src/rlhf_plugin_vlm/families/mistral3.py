"""Mistral 3, with the tower of Pixtral: rows of ``[IMG]``, each ended by ``[IMG_BREAK]``, the last by ``[IMG_END]``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from rlhf_core.media import ANY_AREA, PixelLimits
from rlhf_torch.vision.family import Features, Picture

from ..config import VlmConfig
from .image_text_family import ImageTextFamily
from .loading import (
    OWN_SIZES,
    require_equal,
    require_longest,
    require_no_limits,
    token_ids,
)
from .tokens_by_size import TokensBySize

if TYPE_CHECKING:
    from PIL.Image import Image


class Mistral3(ImageTextFamily):
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for Mistral Small 3.1 and what has its architecture.

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's, or an option is for other families.
    """

    def __init__(
        self, path: str, config: Any, options: VlmConfig, *, trust_remote_code: bool
    ) -> None:
        require_no_limits(path, "mistral3", options, OWN_SIZES)
        super().__init__(path, trust_remote_code=trust_remote_code)
        patch = self.processor.patch_size
        patch = patch if isinstance(patch, int) else int(patch["height"])
        require_equal(path, "patch_size", patch, int(config.vision_config.patch_size))
        self._longest = require_longest(path, self.processor)
        # The processor of images and texts tells that of images the side of what becomes one feature.
        self._side = patch * int(config.spatial_merge_size)
        self.feature_id = int(config.image_token_id)
        words = {"[IMG]": self.feature_id, "[IMG_BREAK]": None, "[IMG_END]": None}
        ids = token_ids(path, words, trust_remote_code=trust_remote_code)
        image, after_row, after_all = ids

        def own(height: int, width: int) -> list[int]:
            rows, columns = self.grid(height, width)
            return [*([*[image] * columns, after_row] * rows)[:-1], after_all] if rows else []

        writing = self.writing(trust_remote_code=trust_remote_code)
        self.tokens = TokensBySize(image, own, tuple(ids), writing, sees=OWN_SIZES)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of an image's features; (0, 0): nothing is left of it."""
        ratio = max(height / self._longest, width / self._longest)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        rows, columns = -(-height // self._side), -(-width // self._side)
        return (rows, columns) if rows and columns else (0, 0)

    def picture(self, image: Image, limits: PixelLimits = ANY_AREA) -> Picture:
        """Return an RGB image at its size, whatever the limits: ``tokens`` refuses an image that has any."""
        made = self.processor(images=[image], patch_size=self._side, return_tensors="pt")
        height, width = made["pixel_values"].shape[-2:]
        return Picture(
            inputs={name: made[name] for name in ("pixel_values", "image_sizes")},
            grid=(height // self._side, width // self._side),
        )

    def features(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> Features:
        """Return the features of pictures, one picture's after the other's."""
        if sum(one.num_features for one in pictures) > 1:
            return super().features(model, pictures)
        # Transformers (5.19) drops the axis of a feature that is the only one of its call, and fails.
        return Features(super().features(model, [*pictures] * 2).embeddings[:1])

    def batched(self, pictures: Sequence[Picture]) -> dict[str, Tensor]:
        """Return pixels with zeros behind the shorter rows and columns, which the tower leaves out by the sizes."""
        pixels = [one.inputs["pixel_values"] for one in pictures]
        height, width = (max(one.shape[side] for one in pixels) for side in (-2, -1))
        filled = [pad(one, (0, width - one.shape[-1], 0, height - one.shape[-2])) for one in pixels]
        sizes = [one.inputs["image_sizes"] for one in pictures]
        return {"pixel_values": torch.cat(filled), "image_sizes": torch.cat(sizes)}
