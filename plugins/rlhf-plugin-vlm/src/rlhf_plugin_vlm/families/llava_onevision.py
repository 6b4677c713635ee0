"""LLaVA-OneVision: the whole image, and behind it the tiles of LLaVA-NeXT at no more than so many features.

Its processor shows the only image of a conversation so, and each of several as the whole alone, filled up to a square.
So the tokens of an image would change when a later turn brings another one. Here ``tiled`` says how all images of a run
are seen, and without it a sequence has one image. Tiles that have too many features together are made fewer by
interpolation (``anyres_max_9``: those of nine).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlhf_core import ConfigError
from rlhf_core.media import ANY_AREA, MediaProblem, MediaSpan, PixelLimits
from rlhf_torch.vision.family import Picture

from ..config import VlmConfig
from .llava_next import LlavaNext
from .loading import token_ids

if TYPE_CHECKING:
    from PIL.Image import Image

_MOST = "anyres_max_"
"""Beginning of the name of how tiles are put together, before how many of them have all features."""


class LlavaOnevision(LlavaNext):
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for LLaVA-OneVision and what has its architecture.

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's, or an option is for other families.
    """

    STRATEGY = "full"

    def __init__(
        self, path: str, config: Any, options: VlmConfig, *, trust_remote_code: bool
    ) -> None:
        self._tiled = options.tiled is not False
        ratio = str(config.vision_aspect_ratio)
        most = ratio.removeprefix(_MOST)
        if most == ratio or not most.isdecimal():
            raise ConfigError(
                f"model {path}: its vision_aspect_ratio is {ratio}; expected {_MOST} and a number of tiles",
                code="image/aspect-ratio",
            )
        self._most = int(most)
        super().__init__(path, config, options, trust_remote_code=trust_remote_code)
        video = int(config.video_token_id)
        token_ids(path, {"<video>": video}, trust_remote_code=trust_remote_code)
        self.tokens.never_sampled = (self.feature_id, video)
        if options.tiled is None:
            self.tokens.no_second = (
                f"the model {path} (llava_onevision) was trained to see the only image of a conversation with its "
                "tiles, and each of several without; expected one way for all images of a run. Set --model.vlm.tiled "
                "false, or true to see each as if it were the only one"
            )

    def num_features(self, height: int, width: int) -> int:
        """Return how many features an image has, those that end rows included."""
        if not self._tiled:
            return self._side**2 + 1
        rows, columns = self.tile_grid(height, width)
        ratio = math.sqrt(rows * columns / (self._most * self._side**2))
        if ratio > 1.1:  # as the model has it, which leaves a few more as they are
            rows, columns = int(rows // ratio), int(columns // ratio)
        return self._side**2 + rows * (columns + 1)

    def picture(self, image: Image, limits: PixelLimits = ANY_AREA) -> Picture:
        """Return an RGB image as its tiles, or whole, whatever the limits: ``tokens`` refuses an image that has any."""
        if self._tiled:
            return super().picture(image, limits)
        # The processor takes an image that has one beside it for one of several.
        made = self.processor(images=[[image, image]], return_tensors="pt")
        return Picture(
            inputs={
                "pixel_values": made["pixel_values"][0],
                "image_sizes": made["image_sizes"][:1],
            },
            grid=(1, self.num_features(image.height, image.width)),
        )

    def batched(self, pictures: Sequence[Picture]) -> dict[str, Tensor]:
        """Return all tiles of pictures, the pictures' sizes, and of how many images the model takes them to be."""
        images = [1] * len(pictures) if self._tiled else [max(2, len(pictures))]
        return super().batched(pictures) | {"batch_num_images": torch.tensor(images)}

    def positions(
        self, num_tokens: int, spans: Sequence[MediaSpan], pictures: Sequence[Picture]
    ) -> Tensor:
        """Return positions (T,), which count tokens whatever they stand for.

        Raises:
            ConfigError: there are several images, and no option says how they are seen.
        """
        try:
            self.tokens.check_count(len(spans))  # images of later turns come one by one
        except MediaProblem as problem:
            raise ConfigError(f"a sequence: {problem}", code="image/several") from problem
        return super().positions(num_tokens, spans, pictures)
