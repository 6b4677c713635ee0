"""What a family's processor writes for an image, by the processor's own outputs and the model's own code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image

from rlhf_testing.tiny_vision_families import (
    MERGE,
    MOST_TILES,
    PATCH,
    PIXTRAL_PATCH,
    RESOLUTIONS,
    TILE,
)

FEATURE = None
"""The place of a feature, among the words of an image."""
PER_TILE = (TILE // PATCH // MERGE) ** 2


def cut_image(processor: Any, image: Image.Image) -> list[str | None]:
    """Idefics3 and SmolVLM: all tiles, row by row, and the whole image behind them."""
    made = processor(images=[image], return_row_col_info=True, return_tensors="pt")
    around, features = "<fake_token_around_image>", [FEATURE] * PER_TILE
    rows, columns = made["rows"][0][0], made["cols"][0][0]
    words: list[str | None] = []
    for row in range(rows):
        for column in range(columns):
            words += [f"{around}<row_{row + 1}_col_{column + 1}>", *features]
        words.append("\n")
    assert (rows * columns + 1) == made["pixel_values"].shape[1]
    return [*words, "\n" if rows else "", f"{around}<global-img>", *features, around]


def rows_of_image(processor: Any, image: Image.Image) -> list[str | None]:
    """Mistral 3: rows of features, with a word behind each."""
    pixels = processor(images=[image], return_tensors="pt")["pixel_values"]
    rows, columns = (side // (PIXTRAL_PATCH * MERGE) for side in pixels.shape[-2:])
    words = [*[FEATURE] * columns, "[IMG_BREAK]"] * rows
    return [*words[:-1], "[IMG_END]"]


def packed_image(processor: Any, image: Image.Image) -> list[str | None]:
    """LLaVA-NeXT: as many features as the model puts together of tiles."""
    from transformers.models.llava_next.modeling_llava_next import LlavaNextModel

    made = processor(images=[image], return_tensors="pt")
    model = SimpleNamespace(config=tiled_config(PATCH * MERGE))
    tiles = torch.zeros(made["pixel_values"].shape[1], PER_TILE, 1)
    (packed,), _ = LlavaNextModel.pack_image_features(
        model, [tiles], made["image_sizes"], "default", torch.zeros(1)
    )
    return [FEATURE] * len(packed)


def mixed_image(processor: Any, image: Image.Image) -> list[str | None]:
    """LLaVA-OneVision: as many features as the model puts together of tiles, those of many interpolated."""
    from transformers.models.llava_onevision.modeling_llava_onevision import LlavaOnevisionModel

    made = processor(images=[image], return_tensors="pt")
    model = SimpleNamespace(config=tiled_config(PATCH))
    tiles = torch.zeros(made["pixel_values"].shape[1], (TILE // PATCH) ** 2, 1)
    (packed,), _ = LlavaOnevisionModel.pack_image_features(
        model, [tiles], made["image_sizes"], torch.zeros(1), f"anyres_max_{MOST_TILES}"
    )
    return [FEATURE] * len(packed)


def tiled_config(patch: int) -> SimpleNamespace:
    """The entries of a configuration that say how tiles are put together."""
    vision = SimpleNamespace(image_size=TILE, patch_size=patch)
    return SimpleNamespace(vision_config=vision, image_grid_pinpoints=RESOLUTIONS)


def counted_image(processor: Any, image: Image.Image) -> list[str | None]:
    """Gemma 4: as many features as the processor counts, between two words."""
    made = processor(images=[image], return_tensors="pt")
    features = [FEATURE] * int(made["num_soft_tokens_per_image"][0])
    return ["<|image>", *features, "<image|>"]


WRITTEN_BY = {
    "gemma4": counted_image,
    "idefics3": cut_image,
    "smolvlm": cut_image,
    "mistral3": rows_of_image,
    "llava_next": packed_image,
    "llava_onevision": mixed_image,
}
"""Family -> the words of an image, from its processor and the image."""
