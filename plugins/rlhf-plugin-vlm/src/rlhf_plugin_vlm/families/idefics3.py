"""Idefics3 and SmolVLM: an image is cut into tiles of one size, with the whole image behind them.

The chat template writes one ``<image>``. In its place comes text of the processor: before each tile a word for its row
and column, a line break behind each row, and ``<global-img>`` before the whole image, which stands alone where the
image is not cut. The tokenizer cuts that text by itself, so words that are no tokens of their own, and line breaks that
become one, are as the processor has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlhf_core.media import ANY_AREA, PixelLimits
from rlhf_torch.vision.family import Picture

from ..config import VlmConfig
from .image_text_family import ImageTextFamily
from .loading import (
    OWN_SIZES,
    load_tokenizer,
    require_equal,
    require_longest,
    require_no_limits,
    token_ids,
)
from .tokens_by_size import TokensBySize

if TYPE_CHECKING:
    from PIL.Image import Image

_LARGEST = 4096
"""Pixels of the longer side above which the processor makes no image."""
_AROUND = "<fake_token_around_image>"


class Idefics3(ImageTextFamily):
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for Idefics3 and SmolVLM.

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's, or an option is for other families.
    """

    TOWER = "vision_model"
    PROJECTOR = ("connector",)
    TEXT = "text_model"

    def __init__(
        self, path: str, config: Any, options: VlmConfig, *, trust_remote_code: bool
    ) -> None:
        require_no_limits(path, config.model_type, options, OWN_SIZES, OWN_SIZES)
        super().__init__(path, trust_remote_code=trust_remote_code)
        vision = config.vision_config
        self._tile = int(vision.image_size)
        tile = self.processor.max_image_size["longest_edge"]
        require_equal(path, "max_image_size", tile, self._tile)
        self._longest = require_longest(path, self.processor)
        per_tile = (self._tile // int(vision.patch_size) // int(config.scale_factor)) ** 2
        self._per_tile = per_tile
        self.feature_id = int(config.image_token_id)
        words = {"<image>": self.feature_id, _AROUND: None}
        token_ids(path, words, trust_remote_code=trust_remote_code)
        tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)

        @lru_cache(maxsize=256)
        def written(rows: int, columns: int) -> tuple[int, ...]:
            text = text_of_image(rows, columns, "<image>" * per_tile)
            return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

        def own(height: int, width: int) -> tuple[int, ...]:
            tiles = self.tiles(height, width)
            return () if tiles is None else written(*tiles)

        writing = self.writing(trust_remote_code=trust_remote_code)
        self.tokens = TokensBySize(
            self.feature_id, own, (self.feature_id,), writing, sees=OWN_SIZES
        )

    def tiles(self, height: int, width: int) -> tuple[int, int] | None:
        """Return in how many rows and columns of tiles an image is cut, (0, 0) if it is not; None: nothing is left.

        As the processor computes it, roundings included: the longer side becomes ``longest_edge``, and then both
        become whole tiles.
        """
        if not self.processor.do_image_splitting:
            return 0, 0
        height, width = _to_longest(height, width, self._longest, even=True)
        if max(height, width) > _LARGEST:
            height, width = _to_longest(height, width, _LARGEST)
        side = self._tile
        longer = math.ceil(max(height, width) / side) * side
        height, width = _to_longest(height, width, longer, least=0)
        rows, columns = math.ceil(height / side), math.ceil(width / side)
        if not rows or not columns:
            return None
        return (0, 0) if rows == columns == 1 else (rows, columns)

    def picture(self, image: Image, limits: PixelLimits = ANY_AREA) -> Picture:
        """Return an RGB image as its tiles, whatever the limits: ``tokens`` refuses an image that has any."""
        pixels = self.processor(images=[image], return_tensors="pt")["pixel_values"][0]
        return Picture(inputs={"pixel_values": pixels}, grid=(len(pixels), self._per_tile))

    def batched(self, pictures: Sequence[Picture]) -> dict[str, Tensor]:
        """Return all tiles of pictures, as those of one sequence."""
        return {"pixel_values": torch.cat([one.inputs["pixel_values"] for one in pictures])[None]}


def text_of_image(rows: int, columns: int, features: str) -> str:
    """Return what the processor writes for an image.

    Args:
        features: the words for the features of one tile.
    """
    cut = ""
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            cut += f"{_AROUND}<row_{row}_col_{column}>{features}"
        cut += "\n"
    before = "\n" if rows else ""
    return f"{cut}{before}{_AROUND}<global-img>{features}{_AROUND}"


def _to_longest(
    height: int, width: int, longest: int, *, even: bool = False, least: int = 1
) -> tuple[int, int]:
    """Return height and width with the longer one, or the width, of ``longest`` pixels; ``even``: the other one is made
    even."""
    ratio = width / height
    if width >= height:
        other = int(longest / ratio)
        return max(other + other % 2 if even else other, least), longest
    other = int(longest * ratio)
    return longest, max(other + other % 2 if even else other, least)
