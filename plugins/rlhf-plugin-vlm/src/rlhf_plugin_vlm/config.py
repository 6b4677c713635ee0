"""Options of the vision model ``vlm``."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config


class VlmConfig(Config):
    """Sizes at which the model sees images."""

    min_pixels: int | None = Field(
        None,
        ge=1,
        description="smaller images are enlarged to this area; unset: as the processor says",
    )
    max_pixels: int | None = Field(
        None,
        ge=1,
        description="larger images are reduced to this area; unset: as the processor says",
    )
    max_tiles: int | None = Field(
        None,
        ge=1,
        description="InternVL: tiles of an image, without the whole one beside them; unset: as the processor says",
    )
    tiled: bool | None = Field(
        None,
        description="LLaVA-OneVision: see all images with their tiles, as the only one of a conversation, or without, "
        "as those of several; unset: with, and a sequence has one image",
    )
