"""Shape of a vision tower, the part of an image-text model that reads pixels, and what its images cost.

Axes of widths: D hidden, F feed-forward. A *patch* is what the tower computes with; ``merge * merge`` patches become
one feature, which stands on one token of the text. Some layers attend within windows of an
image, others over all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerShape:
    """Shape of the tower of Qwen2.5-VL: RMS norms, one matrix for queries, keys and values, a gated feed-forward part,
    and a merger behind the last layer. All matrices but the first have biases."""

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
    patch_side: int
    """Pixels of a patch's side."""
    merge: int
    """Number of patches of the side of what becomes one feature."""
    out: int
    """Width of a feature: that of the text model's hidden states."""
    full_layers: int
    """Number of layers that attend over the whole image."""
    window: int
    """Number of patches of a window."""

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
        """Number of the layers' weights that multiply every patch: ``L (4 D^2 + 3 D F)``."""
        return self.layers * (4 * self.hidden**2 + 3 * self.hidden * self.ffn)

    @property
    def merger_weights(self) -> int:
        """Number of weights that multiply every feature."""
        return self.merged * (self.merged + self.out)

    @property
    def parameters(self) -> int:
        """Number of all parameters."""
        biases = 4 * self.hidden + 2 * self.ffn + self.hidden
        small = self.layers * (2 * self.hidden + biases) + self.hidden + self.merged + self.out
        first = self.patch_inputs * self.hidden
        return first + self.layer_weights + self.merger_weights + small

    def flops(self, image_tokens: int) -> int:
        """Return the operations of a forward pass over one image.

        ``2`` for each weight and patch or feature, and ``4 D`` for each pair of a patch and one that it attends to.

        Args:
            image_tokens: number of the image's features.
        """
        patches = image_tokens * self.patches_of_feature
        weights = 2 * (self.layer_weights + self.patch_inputs * self.hidden) * patches
        weights += 2 * self.merger_weights * image_tokens
        seen = self.full_layers * patches + (self.layers - self.full_layers) * min(
            self.window, patches
        )
        return weights + 4 * self.hidden * patches * seen

    def image_tokens(self, pixels: int) -> int:
        """Return the number of features of an image of this area."""
        return max(1, pixels // (self.patch_side * self.merge) ** 2)


def tower_of(config: Mapping[str, Any], number: Callable[[str], int]) -> TowerShape:
    """Return the shape in the ``vision_config`` of a Qwen2.5-VL's config.json.

    Args:
        number: returns an entry of ``vision_config`` that is a positive integer.
    """
    patch, merge = number("patch_size"), number("spatial_merge_size")
    channels = number("in_channels") if config.get("in_channels") else 3
    return TowerShape(
        hidden=number("hidden_size"),
        layers=number("depth"),
        heads=number("num_heads"),
        ffn=number("intermediate_size"),
        patch_inputs=channels * number("temporal_patch_size") * patch**2,
        patch_side=patch,
        merge=merge,
        out=number("out_hidden_size"),
        full_layers=len(config.get("fullatt_block_indexes") or ()),
        window=(number("window_size") // patch) ** 2,
    )
