"""LLaVA-NeXT: the whole image, and behind it tiles of the resolution that suits its shape best, row by row.

Its tokens are ``<image>`` alone: those of the whole image, and those of the tiles without what only fills the
resolution up, each row of them with one more for a feature of its own that ends it (``image_newline``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from transformers.image_processing_utils import select_best_resolution

from rlhf_core import ConfigError
from rlhf_core.media import ANY_AREA, PixelLimits
from rlhf_torch.vision.family import Picture

from ..config import VlmConfig
from .image_text_family import ImageTextFamily
from .loading import (
    OWN_SIZES,
    require_equal,
    require_no_limits,
    require_size,
    token_ids,
)
from .tokens_by_size import TokensBySize

if TYPE_CHECKING:
    from PIL.Image import Image


class LlavaNext(ImageTextFamily):
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for LLaVA-NeXT (LLaVA 1.6).

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's, or an option is for other families.
    """

    PROJECTOR = ("multi_modal_projector", "image_newline")
    INPUTS = ("pixel_values", "image_sizes")
    tokens: TokensBySize
    STRATEGY: ClassVar[str] = "default"
    """The ``vision_feature_select_strategy`` that leaves a square of features of each tile."""

    def __init__(
        self, path: str, config: Any, options: VlmConfig, *, trust_remote_code: bool
    ) -> None:
        require_no_limits(path, config.model_type, options, OWN_SIZES, OWN_SIZES)
        super().__init__(path, trust_remote_code=trust_remote_code)
        vision = config.vision_config
        self._tile = int(vision.image_size)
        require_size(path, self.processor, (self._tile, self._tile))
        self._resolutions = [list(one) for one in config.image_grid_pinpoints]
        made = [list(one) for one in self.processor.image_grid_pinpoints]
        require_equal(path, "image_grid_pinpoints", made, self._resolutions)
        if any(side % self._tile for one in self._resolutions for side in one):
            raise ConfigError(
                f"model {path}: its image_grid_pinpoints are {self._resolutions}; expected multiples of the "
                f"{self._tile} pixels that a tile has",
                code="image/unsupported-processor",
            )
        strategy = config.vision_feature_select_strategy
        if strategy != self.STRATEGY:
            raise ConfigError(
                f"model {path}: its vision_feature_select_strategy is {strategy}; expected {self.STRATEGY}, since the "
                "tiles of its tower cannot be put together otherwise",
                code="image/unsupported-processor",
            )
        self._side = self._tile // int(vision.patch_size)
        self.feature_id = int(config.image_token_id)
        token_ids(path, {"<image>": self.feature_id}, trust_remote_code=trust_remote_code)
        writing = self.writing(trust_remote_code=trust_remote_code)
        self.tokens = TokensBySize(
            self.feature_id,
            lambda height, width: [self.feature_id] * self.num_features(height, width),
            (self.feature_id,),
            writing,
            sees=OWN_SIZES,
        )

    def num_features(self, height: int, width: int) -> int:
        """Return how many features an image has, those that end rows included."""
        rows, columns = self.tile_grid(height, width)
        return self._side**2 + rows * (columns + 1)

    def tile_grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of features of all tiles together, without those that fill the resolution up."""
        best = select_best_resolution([height, width], self._resolutions)
        rows, columns = (side // self._tile * self._side for side in best)
        if width / height > columns / rows:
            rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
        else:
            columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
        return rows, columns

    def picture(self, image: Image, limits: PixelLimits = ANY_AREA) -> Picture:
        """Return an RGB image as its tiles, whatever the limits: ``tokens`` refuses an image that has any."""
        made = self.processor(images=[image], return_tensors="pt")
        return Picture(
            inputs={"pixel_values": made["pixel_values"][0], "image_sizes": made["image_sizes"]},
            grid=(1, self.num_features(image.height, image.width)),
        )
