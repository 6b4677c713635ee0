"""Shape of a vision tower that reads images, or their tiles, at one size: those of LLaVA, Gemma 3 and InternVL.

Axes of widths: D hidden, F feed-forward. A tile is a square of patches, and has the same number of features whatever it
shows. All layers attend over the whole tile. A projector beside the tower brings features to the text model's width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INTERNVL_TILES = 13
"""Tiles of InternVL's largest image: 12, the ``max_patches`` of its image processor, and the whole image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTowerShape:
    """Shape of a tower of layers with two norms, attention, and a feed-forward part of two matrices."""

    hidden: int
    """Width of the hidden states, D."""
    layers: int
    """Number of layers."""
    heads: int
    """Number of attention heads."""
    ffn: int
    """Width of the feed-forward part, F."""
    patch_inputs: int
    """Number of pixel values of one patch."""
    side: int
    """Number of patches of a tile's side."""
    more_tokens: int
    """Number of hidden states of a tile beside those of its patches: 1 with one for the whole tile, else 0."""
    tile_tokens: int
    """Number of features of a tile."""
    tiles: int = 1
    """Number of tiles of the largest image."""
    small_parameters: int
    """Number of parameters of the tower in norms, biases, scales, tables, and in a head that no feature passes."""
    projector_weights: int
    """Number of the projector's weights that multiply every feature."""
    projector_parameters: int
    """Number of all parameters of the projector."""
    normed: int
    """Number of values of a feature that the projector normalizes; 0 without a norm."""
    projected: int
    """Number of values of a feature that the projector's matmuls and GELU read."""

    gated = False
    early_mergers = 0
    ffn_matrices = 2

    @property
    def layer_weights(self) -> int:
        """Number of the layers' weights that multiply every patch: ``L (4 D^2 + 2 D F)``."""
        return self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.ffn)

    @property
    def parameters(self) -> int:
        """Number of all parameters, the projector's included."""
        first = self.patch_inputs * self.hidden
        return first + self.layer_weights + self.small_parameters + self.projector_parameters

    def tiles_of(self, image_tokens: int) -> int:
        """Return the number of tiles of an image with this many features; a part of a tile is computed as a whole."""
        return -(-image_tokens // self.tile_tokens)

    def patches(self, image_tokens: int) -> int:
        """Return the number of hidden states in each layer."""
        return self.tiles_of(image_tokens) * (self.side**2 + self.more_tokens)

    def flops(self, image_tokens: int) -> int:
        """Return the operations of a forward pass over one image.

        ``2`` for each weight and patch or feature, and ``4 D`` for each pair of patches of a tile, in each layer.

        Args:
            image_tokens: number of the image's features.
        """
        tiles, patches = self.tiles_of(image_tokens), self.patches(image_tokens)
        weights = 2 * self.layer_weights * patches
        weights += 2 * self.patch_inputs * self.hidden * tiles * self.side**2
        weights += 2 * self.projector_weights * tiles * self.tile_tokens
        pairs = patches * (self.side**2 + self.more_tokens)
        return weights + 4 * self.hidden * self.layers * pairs

    def image_tokens(self, pixels: int | None) -> int:
        """Return the number of features of the largest image, which no limit of an area changes."""
        return self.tiles * self.tile_tokens

    def projector_bytes(self, image_tokens: int, width: int) -> int:
        """Return the bytes that the projector keeps of an image: its norm's input and output, and what it reads.

        Args:
            width: bytes of one element of a matmul's input.
        """
        features = self.tiles_of(image_tokens) * self.tile_tokens
        return features * (8 * self.normed + width * self.projected)


def llava_tower(config: Mapping[str, Any], vision: Mapping[str, Any], out: int) -> PlainTowerShape:
    """Return the shape of CLIP's tower and of LLaVA's projector.

    Args:
        config: the whole model's.
        vision: its ``vision_config``, complete.
        out: width of the text model.
    """
    d, f, side = vision["hidden_size"], vision["intermediate_size"], _side(vision)
    tables = d + (side**2 + 1) * d  # the state of the whole image, and the positions
    whole = config.get("vision_feature_select_strategy") == "full"
    biases = 2 * out if config.get("multimodal_projector_bias", True) else 0
    return PlainTowerShape(
        **_sizes(vision, side),
        more_tokens=1,
        tile_tokens=side**2 + whole,
        small_parameters=vision["num_hidden_layers"] * _small(d, f) + tables + 2 * 2 * d,
        projector_weights=d * out + out**2,
        projector_parameters=d * out + out**2 + biases,
        normed=0,
        projected=d + 2 * out,
    )


def gemma3_tower(config: Mapping[str, Any], vision: Mapping[str, Any], out: int) -> PlainTowerShape:
    """Return the shape of SigLIP's tower and of Gemma 3's projector, which takes means of squares of patches.

    Args: see ``llava_tower``.
    """
    d, f, side = vision["hidden_size"], vision["intermediate_size"], _side(vision)
    small = vision["num_hidden_layers"] * _small(d, f) + d + side**2 * d + 2 * d
    if vision.get("vision_use_head", True):  # it is there, and no feature passes it
        small += d + (4 * d**2 + 4 * d) + 2 * d + (2 * d * f + f + d)
    return PlainTowerShape(
        **_sizes(vision, side),
        more_tokens=0,
        tile_tokens=config["mm_tokens_per_image"],
        small_parameters=small,
        projector_weights=d * out,
        projector_parameters=d * out + d,
        normed=d,
        projected=d,
    )


def internvl_tower(
    config: Mapping[str, Any], vision: Mapping[str, Any], out: int
) -> PlainTowerShape:
    """Return the shape of InternVL's tower and projector, which reads squares of patches one after the other.

    Args: see ``llava_tower``.
    """
    d, f, side = vision["hidden_size"], vision["intermediate_size"], _side(vision)
    layers = vision["num_hidden_layers"]
    norm = 1 if vision.get("norm_type") == "rms_norm" else 2  # vectors of a norm
    each = 2 * norm * d + 2 * d + d + f + d  # norms, scales, biases
    each += 3 * d if vision.get("attention_bias") else 0
    each += 2 * d if vision.get("use_qk_norm") else 0
    tables = d * (1 + bool(vision.get("use_mask_token")))
    tables += (side**2 + 1) * d if vision.get("use_absolute_position_embeddings", True) else 0
    last = 0 if vision.get("use_mean_pooling", True) else 2 * d
    merge = round(1 / config.get("downsample_ratio", 0.5))
    merged = merge**2 * d
    return PlainTowerShape(
        **_sizes(vision, side),
        more_tokens=1,
        tile_tokens=(side // merge) ** 2,
        tiles=INTERNVL_TILES,
        small_parameters=layers * each + d + tables + last,
        projector_weights=merged * out + out**2,
        projector_parameters=2 * merged + merged * out + out**2 + 2 * out,
        normed=merged,
        projected=merged + 2 * out,
    )


def _sizes(vision: Mapping[str, Any], side: int) -> dict[str, int]:
    return {
        "hidden": vision["hidden_size"],
        "layers": vision["num_hidden_layers"],
        "heads": vision["num_attention_heads"],
        "ffn": vision["intermediate_size"],
        "patch_inputs": vision["num_channels"] * _edge(vision["patch_size"]) ** 2,
        "side": side,
    }


def _small(d: int, f: int) -> int:
    """Return the parameters of one layer in two layer norms and the biases of six matrices."""
    return 2 * 2 * d + 4 * d + f + d


def _side(vision: Mapping[str, Any]) -> int:
    return _edge(vision["image_size"]) // _edge(vision["patch_size"])


def _edge(size: Any) -> int:
    """Return the side of a square, which a config.json gives as one number or as two equal ones."""
    return int(size[0]) if isinstance(size, list | tuple) else int(size)
