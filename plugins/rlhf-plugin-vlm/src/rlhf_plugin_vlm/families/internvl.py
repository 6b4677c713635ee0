"""InternVL: an image is cut into tiles by its shape, with the whole image as the last one if there are several.

Its tokens are ``<img>``, as many ``<IMG_CONTEXT>`` as all tiles have features, and ``</img>``; the chat template writes
one ``<IMG_CONTEXT>`` for an image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlhf_core import ConfigError
from rlhf_core.media import ANY_AREA, MediaProblem, MediaRef, PixelLimits, ProcessorText
from rlhf_torch.vision.family import Picture

from ..config import VlmConfig
from .image_text_family import ImageTextFamily
from .loading import require_size, token_ids

if TYPE_CHECKING:
    from PIL.Image import Image


class TileTokens:
    """Implements ``rlhf_core.media.ImageTokens``: one marker for each feature of each tile, between two words.

    Args:
        processor: the image processor, which knows into how many tiles it cuts an image.
        per_tile: features of a tile.
        around: the tokens before and behind an image's markers.
        writing: what the processor writes into conversations.
    """

    def __init__(
        self,
        processor: Any,
        marker_id: int,
        per_tile: int,
        around: tuple[int, int],
        writing: ProcessorText,
    ) -> None:
        self._processor = processor
        self._per_tile = per_tile
        self._around = around
        self.writing = writing
        self.marker_id = marker_id
        self.never_sampled = (marker_id,)

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        """Return the tokens of an image, by its size and the limits on its area alone.

        Raises:
            MediaProblem: the limits allow no number of tiles that the processor has.
        """
        tiles = self._processor.get_number_of_image_patches(
            image.height, image.width, tiles_within(self._processor, image.limits)
        )
        begin, end = self._around
        return (begin, *(self.marker_id,) * (int(tiles) * self._per_tile), end)


def tiles_within(processor: Any, limits: PixelLimits) -> dict[str, int]:
    """Return the smallest and the largest number of tiles of an image with limits on its area: as many as fit into the
    largest area, or fill the smallest one. The whole image, which is shown beside several tiles, does not count.

    Raises:
        MediaProblem: a limit is below one tile, or the smallest number is above the largest one.
    """
    area = int(processor.size["height"]) * int(processor.size["width"])
    least, most = int(processor.min_patches), int(processor.max_patches)
    if limits.max_pixels is not None:
        most = limits.max_pixels // area
    if limits.min_pixels is not None:
        least = -(-limits.min_pixels // area)
    if not 1 <= least <= most:
        raise MediaProblem(
            "limit of an image's area",
            f"{limits.fields()} are {least} to {most} tiles of {area} pixels; expected 1 or more, and no fewer at the "
            "most than at the least",
        )
    return {"min_patches": least, "max_patches": most}


class InternVl(ImageTextFamily):
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for InternVL 3 and what has its architecture.

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's, or an option is for other families.
    """

    def __init__(
        self, path: str, config: Any, options: VlmConfig, *, trust_remote_code: bool
    ) -> None:
        super().__init__(path, trust_remote_code=trust_remote_code)
        vision = config.vision_config
        require_size(path, self.processor, tuple(vision.image_size))
        # The file of the image processor says false; the processor of images and texts, which models are used with,
        # sets it.
        self.processor.crop_to_patches = True
        self._limit(options)
        rows, columns = (
            int(side // patch * config.downsample_ratio)
            for side, patch in zip(vision.image_size, vision.patch_size, strict=True)
        )
        self._per_tile = rows * columns
        self.feature_id = int(config.image_token_id)
        words = {"<img>": None, "</img>": None, "<IMG_CONTEXT>": self.feature_id}
        begin, end, _ = token_ids(path, words, trust_remote_code=trust_remote_code)
        writing = self.writing(trust_remote_code=trust_remote_code)
        self.tokens = TileTokens(
            self.processor, self.feature_id, self._per_tile, (begin, end), writing
        )

    def picture(self, image: Image, limits: PixelLimits = ANY_AREA) -> Picture:
        """Return an RGB image as its tiles, each at the model's size."""
        tiles = tiles_within(self.processor, limits)
        made = self.processor(images=[image], return_tensors="pt", **tiles)
        pixels = made["pixel_values"]
        return Picture(inputs={"pixel_values": pixels}, grid=(len(pixels), self._per_tile))

    def _limit(self, options: VlmConfig) -> None:
        """Let the processor cut images by the options."""
        if options == VlmConfig():
            return
        areas = PixelLimits(min_pixels=options.min_pixels, max_pixels=options.max_pixels)
        try:
            tiles = tiles_within(self.processor, areas)
        except MediaProblem as problem:
            raise ConfigError(f"--model.vlm.max_pixels: {problem}", code="image/limit") from problem
        if options.max_tiles is not None:
            tiles["max_patches"] = options.max_tiles
        if tiles["min_patches"] > tiles["max_patches"]:
            raise ConfigError(
                f"--model.vlm.max_tiles is {tiles['max_patches']}; expected at least {tiles['min_patches']}, those of "
                "--model.vlm.min_pixels or of the model's processor",
                code="image/limit",
            )
        for name, value in tiles.items():
            setattr(self.processor, name, value)
        self.changed = tiles
