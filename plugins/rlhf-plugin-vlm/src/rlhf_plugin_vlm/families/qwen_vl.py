"""Qwen2-VL to Qwen3.5: as many pads as an image has features, and positions by time, row and column (M-RoPE).

The image's tokens are ``<|image_pad|>`` alone; the chat template writes ``<|vision_start|>`` and ``<|vision_end|>``
around them. Text counts on behind an image from its longer side, not from the number of its tokens. Frames of videos
are in ``qwen_frames``.
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
    Frame,
    MediaProblem,
    MediaRef,
    MediaSpan,
    PixelLimits,
    ProcessorText,
)
from rlhf_torch.vision.family import Features, Picture

from ..config import VlmConfig
from .image_text_family import ImageTextFamily, joined
from .loading import require_equal, require_no_tiles, start_of_texts, token_ids
from .qwen_frames import IN_POSITIONS, IN_TEXT, FramePads, frame_pads, patches

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
    """Implements ``rlhf_torch.vision.family.VideoFamily`` for Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5.

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
        images = PadTokens(
            self.processor, self.feature_id, ids, ProcessorText(begin=begin), self.counted
        )
        self.tokens = images
        self._frames: FramePads | None = None
        if config.model_type in (*IN_POSITIONS, *IN_TEXT):
            self._frames = frame_pads(path, config, images, trust_remote_code=trust_remote_code)
            self.tokens = self._frames
        # In a video of Qwen2.5-VL a second has as many positions as this says, in one of Qwen2-VL two frames have one.
        self._per_second: int | None = getattr(vision, "tokens_per_second", None)

    @property
    def counted(self) -> int:
        """Number of times that the areas of the processor count an image's."""
        return 1

    def picture(self, image: Image, limits: PixelLimits = ANY_AREA) -> Picture:
        """Return an RGB image as patches, and its grid in features."""
        size = size_within(self.processor, limits, self.counted)
        made = self.processor(images=[image], size=size, return_tensors="pt")
        _, rows, columns = made["image_grid_thw"][0].tolist()
        merge = self.processor.merge_size
        return Picture(
            inputs={name: made[name] for name in ("pixel_values", "image_grid_thw")},
            grid=(rows // merge, columns // merge),
        )

    def frames(self, images: Sequence[Image], first: MediaRef) -> Picture:
        """Return RGB frames that the model sees as one, as patches, and their grid in features."""
        assert self._frames is not None, "tokens of frames were made"
        return patches(self.processor, self._frames.settings, images, self._frames.size(first))

    def features(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> Features:
        """Return the features of pictures, one picture's after the other's."""
        device = next(self.tower(model).parameters()).device
        pixels, grids = (
            torch.cat([picture.inputs[name] for picture in pictures]).to(device)
            for name in ("pixel_values", "image_grid_thw")
        )
        found = model.base_model.get_image_features(pixels, grids, return_dict=True)
        layers = getattr(found, "deepstack_features", None) or ()
        return Features(joined(found.pooler_output), tuple(joined(layer) for layer in layers))

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

        Behind an image text goes on from its first position plus the larger of its rows and columns, and so behind a
        video of which positions tell the times, whatever its length.
        Source: Wang et al. 2024, arXiv:2409.12191, section 2.1; times: Bai et al. 2025, arXiv:2502.13923, section 2.1.
        """
        parts: list[Tensor] = []
        position = behind = anchor = 0
        for span, picture in zip(spans, pictures, strict=True):
            frame = span.image.frame
            writes_time = frame is not None and self._writes_times
            # Behind features that follow a text stands a token that ends them.
            end = span.end - writes_time
            start = end - picture.num_features
            if frame is None or writes_time or not frame.index:
                parts.append((position + torch.arange(start - behind)).expand(3, -1))
                position += start - behind
                anchor = position
            time = 0 if frame is None or writes_time else self._time(frame)
            rows, columns = picture.grid
            by_row = torch.arange(rows).repeat_interleave(columns)
            by_column = torch.arange(columns).repeat(rows)
            parts.append(anchor + torch.stack([torch.full_like(by_row, time), by_row, by_column]))
            position = anchor + max(rows, columns)
            behind = end
        parts.append((position + torch.arange(num_tokens - behind)).expand(3, -1))
        return torch.cat(parts, dim=1)

    @property
    def _writes_times(self) -> bool:
        return self._frames is not None and self._frames.times is not None

    def _time(self, frame: Frame) -> int:
        """Return the position of a frame in time, from its video's first one on."""
        assert self._frames is not None
        step = self._frames.frames_together
        if self._per_second is None:
            return frame.index // step
        # In float32, as Transformers has it: the number is cut off, so that its last bit may count.
        interval = self._per_second * torch.tensor(step / frame.rate, dtype=torch.float32)
        return int((frame.index // step * interval).long())

    def _limit(self, options: VlmConfig) -> None:
        size, frames = dict(self.processor.size), self.counted
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
