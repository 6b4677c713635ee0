"""InternVL: an image is cut into tiles by its shape, with the whole image as the last one if there are several.

Its tokens are ``<img>``, as many ``<IMG_CONTEXT>`` as all tiles have features, and ``</img>``; the chat template writes
one ``<IMG_CONTEXT>`` for an image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlhf_core.media import MediaRef
from rlhf_torch.vision.family import Picture

from ..config import VlmConfig
from .image_text_family import ImageTextFamily
from .loading import require_no_limits, require_size, token_ids

if TYPE_CHECKING:
    from PIL.Image import Image


class TileTokens:
    """Implements ``rlhf_core.media.ImageTokens``: one marker for each feature of each tile, between two words.

    Args:
        processor: the image processor, which knows into how many tiles it cuts an image.
        per_tile: features of a tile.
        around: the tokens before and behind an image's markers.
    """

    def __init__(
        self, processor: Any, marker_id: int, per_tile: int, around: tuple[int, int]
    ) -> None:
        self._processor = processor
        self._per_tile = per_tile
        self._around = around
        self.marker_id = marker_id
        self.never_sampled = (marker_id,)

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        """Return the tokens of an image, by its size alone."""
        tiles = self._processor.get_number_of_image_patches(image.height, image.width)
        begin, end = self._around
        return (begin, *(self.marker_id,) * (int(tiles) * self._per_tile), end)


class InternVl(ImageTextFamily):
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for InternVL 3 and what has its architecture.

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's, or an option is for other families.
    """

    def __init__(
        self, path: str, config: Any, options: VlmConfig, *, trust_remote_code: bool
    ) -> None:
        require_no_limits(path, "internvl", options)
        super().__init__(path, trust_remote_code=trust_remote_code)
        vision = config.vision_config
        require_size(path, self.processor, tuple(vision.image_size))
        # The file of the image processor says false; the processor of images and texts, which models are used with,
        # sets it.
        self.processor.crop_to_patches = True
        rows, columns = (
            int(side // patch * config.downsample_ratio)
            for side, patch in zip(vision.image_size, vision.patch_size, strict=True)
        )
        self._per_tile = rows * columns
        self.feature_id = int(config.image_token_id)
        words = {"<img>": None, "</img>": None, "<IMG_CONTEXT>": self.feature_id}
        begin, end, _ = token_ids(path, words, trust_remote_code=trust_remote_code)
        self.tokens = TileTokens(self.processor, self.feature_id, self._per_tile, (begin, end))

    def picture(self, image: Image) -> Picture:
        """Return an RGB image as its tiles, each at the model's size."""
        made = self.processor(images=[image], return_tensors="pt")
        pixels = made["pixel_values"]
        return Picture(inputs={"pixel_values": pixels}, grid=(len(pixels), self._per_tile))
