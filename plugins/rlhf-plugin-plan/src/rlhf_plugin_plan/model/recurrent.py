"""Shape of layers of gated linear attention, read from a model's config.json, and the numbers that follow from it.

Axes: D hidden, H heads of values, K and V sizes of a key and of a value, C channels of the convolution, W its taps. The
delta rule is computed by plain torch, in chunks of 64 tokens: the kernel of flash-linear-attention keeps less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FAMILIES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Values of ``model_type`` whose layers of linear attention are modeled."""
CHUNK = 64
"""Number of tokens that the delta rule computes at once."""
_INTERVAL = 4
"""Distance of layers with attention, where a config.json names no kinds of layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentShape:
    """Shape of a layer of gated linear attention."""

    key_heads: int
    """Number of heads of queries and of keys."""
    heads: int
    """Number of heads of values, H."""
    key: int
    """Size of a key, K."""
    value: int
    """Size of a value, V."""
    taps: int
    """Number of tokens that the convolution reads, W."""
    inputs: int
    """Number of matrices that read the norm's output."""
    layers: frozenset[int]
    """Numbers of these layers."""

    @property
    def channels(self) -> int:
        """Number of channels of the convolution, C: queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key + self.heads * self.value

    def weights(self, hidden: int) -> int:
        """Return the number of weights of a layer that multiply every token: ``D (C + 2 H V + 2 H)``, for channels,
        gates, outputs, and two numbers of each head."""
        return hidden * (self.channels + 2 * self.heads * self.value + 2 * self.heads)

    @property
    def small(self) -> int:
        """Number of a layer's parameters in the convolution, in two numbers of each head, and in a norm."""
        return self.channels * self.taps + 2 * self.heads + self.value

    @property
    def flops(self) -> int:
        """Operations of one token in the delta rule of a layer: three products with the state, and its decay."""
        return 7 * self.heads * self.key * self.value

    def state_bytes(self, width: int) -> int:
        """Return the bytes of one sequence's state in a layer: a matrix of each head in float32, and the last inputs of
        the convolution.

        Args:
            width: bytes of one element of a matmul's input.
        """
        memory = 4 * self.heads * self.key * self.value
        return memory + width * self.channels * (self.taps - 1)

    def kept(self, width: int, *, casts: bool, fixed: bool = False) -> float:
        """Return the bytes of one token that the layer's mixer keeps for the backward pass, without the norm's output.

        Arrays of K, V and the chunk's width for each head in float32, those of the matmuls also cast under autocast;
        the state at each chunk; and, in the type of the matmuls, the convolution's input and output, the gate, the
        gated norm's output and what it multiplies.

        Args:
            width: bytes of one element of a matmul's input.
            casts: weights are cast in every pass.
            fixed: no weight is trained, so inputs of the norm's product and of the output's projection are not kept.
        """
        k, v, heads = self.key, self.value, self.heads
        keys = 8 if width == 2 else 12
        rule = 4 * (keys * k + 6 * v + 5 * CHUNK + 9 - fixed) + 4 * (k * v + 1) / CHUNK
        if casts:
            rule = 38 * k + 26 * v + 14 * CHUNK + 4 * (9 - fixed) + (8 * k * v + 4) / CHUNK
        arrays = 2 * self.channels + (1 if fixed else 3) * heads * v + heads
        return heads * rule + width * arrays


def recurrent_of(
    config: Mapping[str, Any], number: Callable[[str], int], layers: int
) -> RecurrentShape | None:
    """Return the layers of linear attention that a config.json describes; None: there are none.

    Args:
        number: returns an entry that is a positive integer.
        layers: number of the model's layers.
    """
    if config.get("model_type") not in FAMILIES:
        return None
    kinds = config.get("layer_types")
    interval = config.get("full_attention_interval") or _INTERVAL
    found = {
        layer
        for layer in range(layers)
        if (kinds[layer] == "linear_attention" if kinds else (layer + 1) % interval)
    }
    if not found:
        return None
    return RecurrentShape(
        key_heads=number("linear_num_key_heads"),
        heads=number("linear_num_value_heads"),
        key=number("linear_key_head_dim"),
        value=number("linear_value_head_dim"),
        taps=number("linear_conv_kernel_dim"),
        inputs=2 if config["model_type"] == "qwen3_next" else 4,
        layers=frozenset(found),
    )
