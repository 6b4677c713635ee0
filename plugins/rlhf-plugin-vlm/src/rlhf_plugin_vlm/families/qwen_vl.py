"""Qwen2-VL to Qwen3.5: as many pads as an image has features, and positions by time, row and column (M-RoPE).

The image's tokens are ``<|image_pad|>`` alone; the chat template writes ``<|vision_start|>`` and ``<|vision_end|>``
around them. Text counts on behind an image from its longer side, not from the number of its tokens.
In Qwen3-VL the first layers of the text model read features of their own (DeepStack, arXiv:2406.04334).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf_core import ConfigError
from rlhf_core.media import (
    ANY_AREA,
    MediaProblem,
    MediaRef,
    MediaSpan,
    PixelLimits,
    ProcessorText,
)
from rlhf_torch.vision.family import Features, Picture

from ..config import VlmConfig
from .image_text_family import ImageTextFamily
from .loading import require_equal, require_no_tiles, start_of_texts, token_ids

if TYPE_CHECKING:
    from PIL.Image import Image


_OLD_NAMES = {"min_pixels": None, "max_pixels": None}
"""Names that older files have for the areas of ``size``, which would win over it."""


class PadTokens:
    """Implements ``rlhf_core.media.ImageTokens``: one pad for each feature.

    Args:
        processor: the image processor, which knows to what size it changes images.
        writing: what the processor writes into conversations.
        frames: number of times that the areas of the processor count an image's.
    """

    def __init__(
        self,
        processor: Any,
        pad_id: int,
        never_sampled: tuple[int, ...],
        writing: ProcessorText,
        frames: int = 1,
    ) -> None:
        self._processor = processor
        self._frames = frames
        self.writing = writing
        self.marker_id = pad_id
        self.never_sampled = never_sampled

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        """Return the pads of an image, by its size and the limits on its area alone.

        Raises:
            MediaProblem: the processor refuses the size, or the limits exclude each other.
        """
        size = size_within(self._processor, image.limits, self._frames)
        named: dict[str, Any] = {"size": size}
        # Qwen's processors read these names alone, others the size.
        named |= {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
        try:
            patches = self._processor.get_number_of_image_patches(image.height, image.width, named)
        except ValueError as error:
            raise MediaProblem(
                "size of an image",
                f"the model's processor cannot read an image of {image.width} x {image.height} pixels: {error}",
            ) from error
        return (self.marker_id,) * int(patches // self._processor.merge_size**2)


def size_within(processor: Any, limits: PixelLimits, frames: int = 1) -> dict[str, int]:
    """Return the sizes of an image processor with an image's own limits in the place of its areas.

    Args:
        frames: number of times that the areas of the processor count an image's.

    Raises:
        MediaProblem: the smallest area is above the largest one.
    """
    size = dict(processor.size)
    counted = PixelLimits(**{name: frames * area for name, area in limits.fields().items()})
    whole = counted.otherwise(
        PixelLimits(min_pixels=size["shortest_edge"], max_pixels=size["longest_edge"])
    )
    return size | {"shortest_edge": whole.min_pixels, "longest_edge": whole.max_pixels}


class QwenVl(ImageTextFamily):
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5.

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's.
    """

    TOWER = "visual"
    PROJECTOR = ("visual.merger", "visual.deepstack_merger_list")
    WORDS: ClassVar[tuple[str, str]] = ("<|image_pad|>", "<|video_pad|>")
    """Tokens of a feature of images, and of videos."""

    def __init__(
        self, path: str, config: Any, options: VlmConfig, *, trust_remote_code: bool
    ) -> None:
        require_no_tiles(path, config.model_type, options)
        super().__init__(path, trust_remote_code=trust_remote_code)
        self._limit(options)
        vision = config.vision_config
        for name, wanted in (
            ("patch_size", vision.patch_size),
            ("merge_size", vision.spatial_merge_size),
            ("temporal_patch_size", vision.temporal_patch_size),
        ):
            require_equal(path, name, getattr(self.processor, name, None), wanted)
        self.feature_id = int(config.image_token_id)
        ids = (self.feature_id, int(config.video_token_id))
        words = dict(zip(self.WORDS, ids, strict=True))
        token_ids(path, words, trust_remote_code=trust_remote_code)
        begin = start_of_texts(path, trust_remote_code=trust_remote_code)
        self.tokens = PadTokens(
            self.processor, self.feature_id, ids, ProcessorText(begin=begin), self.frames
        )

    @property
    def frames(self) -> int:
        """Number of times that the areas of the processor count an image's."""
        return 1

    def picture(self, image: Image, limits: PixelLimits = ANY_AREA) -> Picture:
        """Return an RGB image as patches, and its grid in features."""
        size = size_within(self.processor, limits, self.frames)
        made = self.processor(images=[image], size=size, return_tensors="pt")
        _, rows, columns = made["image_grid_thw"][0].tolist()
        merge = self.processor.merge_size
        return Picture(
            inputs={name: made[name] for name in ("pixel_values", "image_grid_thw")},
            grid=(rows // merge, columns // merge),
        )

    def features(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> Features:
        """Return the features of pictures, one picture's after the other's."""
        device = next(self.tower(model).parameters()).device
        pixels, grids = (
            torch.cat([picture.inputs[name] for picture in pictures]).to(device)
            for name in ("pixel_values", "image_grid_thw")
        )
        found = model.base_model.get_image_features(pixels, grids, return_dict=True)
        layers = getattr(found, "deepstack_features", None) or ()
        return Features(
            torch.cat(list(found.pooler_output)), tuple(torch.cat(list(layer)) for layer in layers)
        )

    def layer_inputs(self, features: Features, places: Tensor, num_tokens: int) -> dict[str, Any]:
        """Return what Qwen3-VL's first layers read; nothing for the others."""
        if not features.layers:
            return {}
        has_feature = torch.zeros(1, num_tokens, dtype=torch.bool, device=places.device)
        has_feature[0, places] = True
        return {
            "visual_pos_masks": has_feature,
            "deepstack_visual_embeds": list(features.layers),
        }

    def positions(
        self, num_tokens: int, spans: Sequence[MediaSpan], pictures: Sequence[Picture]
    ) -> Tensor:
        """Return positions (3, T): equal in text, and in an image one time, its rows and its columns.

        Behind an image text goes on from its first position plus the larger of its rows and columns.
        Source: Wang et al. 2024, arXiv:2409.12191, section 2.1.
        """
        parts: list[Tensor] = []
        position = behind = 0
        for span, picture in zip(spans, pictures, strict=True):
            before = span.start - behind
            parts.append((position + torch.arange(before)).expand(3, -1))
            position += before
            rows, columns = picture.grid
            by_row = torch.arange(rows).repeat_interleave(columns)
            by_column = torch.arange(columns).repeat(rows)
            parts.append(position + torch.stack([torch.zeros_like(by_row), by_row, by_column]))
            position += max(rows, columns)
            behind = span.end
        parts.append((position + torch.arange(num_tokens - behind)).expand(3, -1))
        return torch.cat(parts, dim=1)

    def _limit(self, options: VlmConfig) -> None:
        size, frames = dict(self.processor.size), self.frames
        if options.min_pixels is not None:
            size["shortest_edge"] = frames * options.min_pixels
        if options.max_pixels is not None:
            size["longest_edge"] = frames * options.max_pixels
        if size["shortest_edge"] > size["longest_edge"]:
            raise ConfigError(
                f"--model.vlm.min_pixels is {size['shortest_edge'] // frames}; expected at most "
                f"--model.vlm.max_pixels = {size['longest_edge'] // frames}",
                code="image/limit",
            )
        self.processor.size = size
        self.changed = {} if options == VlmConfig() else {"size": size, **_OLD_NAMES}
