"""Shape of a vision tower, the part of an image-text model that reads pixels, and what its images cost.

Axes of widths: D hidden, F feed-forward. A *patch* is what the tower computes with; ``merge * merge`` patches become
one feature, which stands on one token of the text. Some layers attend within windows of an
image, others over all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

QWEN: Mapping[str, str] = {
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""``model_type`` of a family whose tower has closed forms, too -> that of its text model."""
COUNTED_TOWERS = ("llava", "gemma3", "internvl")
"""Families whose tower is counted in Transformers' own model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerShape:
    """Shape of the towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: one matrix for queries, keys and values, and a merger
    behind the last layer.

    Qwen2.5-VL has RMS norms, a gated feed-forward part, and biases of all matrices but the first. Qwen3-VL has layer
    norms, a feed-forward part of two matrices, biases of all matrices, a table of positions, and mergers behind earlier
    layers, whose features the first layers of the text model read. Qwen2-VL has the layers of Qwen3-VL alone.
    """

    hidden: int
    """Width of the hidden states, D."""
    layers: int
    heads: int
    ffn: int
    """Width of the feed-forward part, F."""
    patch_inputs: int
    """Number of pixel values of one patch."""
    patch_side: int
    """Pixels of a patch's side."""
    merge: int
    """Number of patches of the side of what becomes one feature."""
    out: int
    """Width of a feature: that of the text model's hidden states."""
    full_layers: int
    """Number of layers that attend over the whole image."""
    window: int
    gated: bool = True
    """Qwen2.5-VL: RMS norms and a gated feed-forward part; False: Qwen2-VL and Qwen3-VL."""
    first_bias: bool = False
    """Whether the first matrix, which reads pixels, has a bias: Qwen3-VL's."""
    positions: int = 0
    """Number of rows of the table of positions."""
    early_mergers: int = 0
    """Number of mergers behind earlier layers."""

    @property
    def ffn_matrices(self) -> int:
        """Number of matrices of a feed-forward part."""
        return 3 if self.gated else 2

    @property
    def patches_of_feature(self) -> int:
        """Number of patches that become one feature."""
        return self.merge**2

    @property
    def merged(self) -> int:
        """Width of the patches of one feature, one after the other."""
        return self.patches_of_feature * self.hidden

    @property
    def layer_weights(self) -> int:
        """Number of the layers' weights that multiply every patch: ``L (4 D^2 + 3 D F)``, not gated ``2 D F``."""
        return self.layers * (4 * self.hidden**2 + self.ffn_matrices * self.hidden * self.ffn)

    @property
    def merger_weights(self) -> int:
        """Number of weights of all mergers, which multiply every feature."""
        return (1 + self.early_mergers) * self.merged * (self.merged + self.out)

    @property
    def parameters(self) -> int:
        norm = 1 if self.gated else 2  # vectors of a norm: a scale, and with layer norms a bias
        biases = 4 * self.hidden + (self.ffn_matrices - 1) * self.ffn + self.hidden
        small = self.layers * (2 * norm * self.hidden + biases)
        small += norm * self.hidden + self.merged + self.out
        small += self.early_mergers * (norm * self.merged + self.merged + self.out)
        first = self.patch_inputs * self.hidden + self.first_bias * self.hidden
        tables = self.positions * self.hidden
        return first + tables + self.layer_weights + self.merger_weights + small

    def flops(self, image_tokens: int) -> int:
        """Return the operations of a forward pass over one image.

        ``2`` for each weight and patch or feature, and ``4 D`` for each pair of a patch and one that it attends to.

        Args:
            image_tokens: number of the image's features.
        """
        patches = self.patches(image_tokens)
        weights = 2 * (self.layer_weights + self.patch_inputs * self.hidden) * patches
        weights += 2 * self.merger_weights * image_tokens
        seen = self.full_layers * patches + (self.layers - self.full_layers) * min(
            self.window, patches
        )
        return weights + 4 * self.hidden * patches * seen

    def patches(self, image_tokens: int) -> int:
        """Return the number of patches of an image with this many features."""
        return image_tokens * self.patches_of_feature

    def image_tokens(self, pixels: int | None) -> int | None:
        """Return the number of features of an image of this area; None without an area: there is no largest one."""
        if pixels is None:
            return None
        return max(1, pixels // (self.patch_side * self.merge) ** 2)

    def projector_bytes(self, image_tokens: int, width: int) -> int:
        """Return the bytes that all mergers keep of an image: normalized inputs and what matmuls and GELU read.

        Args:
            width: bytes of one element of a matmul's input.
        """
        mergers = (1 + self.early_mergers) * (8 + 3 * width) * self.hidden
        return self.patches(image_tokens) * mergers


def tower_of(config: Mapping[str, Any], number: Callable[[str], int], *, family: str) -> TowerShape:
    """Return the shape in the ``vision_config`` of a config.json.

    Args:
        family: ``model_type`` of the whole. Only in Qwen2.5-VL some layers attend within windows.
        number: returns an entry of ``vision_config`` that is a positive integer.
    """
    patch, merge = number("patch_size"), number("spatial_merge_size")
    channels = number("in_channels") if config.get("in_channels") else 3
    gated, newest = family == "qwen2_5_vl", family.startswith("qwen3")
    # In Qwen2-VL the entry hidden_size is the width of a feature.
    older = family == "qwen2_vl"
    hidden = number("embed_dim" if older else "hidden_size")
    return TowerShape(
        hidden=hidden,
        layers=number("depth"),
        heads=number("num_heads"),
        ffn=hidden * number("mlp_ratio") if older else number("intermediate_size"),
        patch_inputs=channels * number("temporal_patch_size") * patch**2,
        patch_side=patch,
        merge=merge,
        out=number("hidden_size" if older else "out_hidden_size"),
        full_layers=len(config.get("fullatt_block_indexes") or ()) if gated else number("depth"),
        window=(number("window_size") // patch) ** 2 if gated else 0,
        gated=gated,
        first_bias=newest,
        positions=number("num_position_embeddings") if newest else 0,
        early_mergers=len(config.get("deepstack_visual_indexes") or ()) if newest else 0,
    )


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the text model of one of ``QWEN``, which may stand beside the tower.

    The text model has a ``tie_word_embeddings`` of its own, which does not count: the output head is the whole's.
    """
    own = config.get("text_config") or {}
    tied = config.get("tie_word_embeddings", False)
    kind = QWEN[config["model_type"]]
    return {**config, **own, "model_type": kind, "tie_word_embeddings": tied}
