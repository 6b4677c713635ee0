"""Options of the vision model ``vlm``."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config


class VlmConfig(Config):
    """Sizes at which the model sees images."""

    min_pixels: int | None = Field(
        None,
        ge=1,
        description="area in pixels to which smaller images are enlarged; unset: the model's image processor decides",
    )
    max_pixels: int | None = Field(
        None,
        ge=1,
        description="area in pixels to which larger images are reduced; unset: the model's image processor decides",
    )
    max_tiles: int | None = Field(
        None,
        ge=1,
        description="InternVL: largest number of tiles of an image, not counting the whole image; unset: the model's "
        "image processor decides",
    )
    tiled: bool | None = Field(
        None,
        description="LLaVA-OneVision: show all images with their tiles, or all without; unset: with tiles, and a "
        "sequence may have one image only",
    )
