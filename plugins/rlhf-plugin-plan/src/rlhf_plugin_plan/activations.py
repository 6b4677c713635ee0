"""Bytes that a forward pass keeps for one token, layer by layer, as Transformers' modules make them.

Axes of widths: D hidden, Q queries, K keys (and values), F feed-forward, V vocabulary. A width times 2 is
bfloat16, times 4 is float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from .shapes import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Types of a role's parameters and of its matmuls."""

    parameters: str
    """``float32`` or ``bfloat16``."""
    compute: str

    @property
    def weight_bytes(self) -> int:
        return 4 if self.parameters == "float32" else 2

    @property
    def compute_bytes(self) -> int:
        return 4 if self.compute == "float32" else 2

    @property
    def casts(self) -> bool:
        """Weights are cast for every pass (autocast)."""
        return self.parameters != self.compute


def layer_bytes(
    shape: ModelShape,
    precision: Precision,
    *,
    compiled: bool = False,
) -> int:
    """Bytes of one token that one layer keeps for its backward pass.

    Norms keep their input and the normalized input, both in float32 under autocast; with bfloat16 parameters the second
    one in bfloat16. A matmul keeps its input; under autocast each makes a cast of its own (three of the first norm's
    output, two of the second's). Attention keeps queries, keys, values and output. The feed-forward part keeps gate,
    silu(gate), up and their product.

    ``compiled`` holds for bfloat16 parameters: norms then keep both in bfloat16, and silu(gate) is computed again.
    """
    d, q, k = shape.hidden, shape.query_width, shape.kv_width
    width = precision.compute_bytes
    if compiled and precision.parameters == "bfloat16":
        norms = 2 * (2 + 2) * d
    elif precision.casts:
        norms = (4 + 4 + 3 * width) * d + (4 + 4 + 2 * width) * d
    elif precision.compute == "bfloat16":
        norms = 2 * (4 + 2 + 2) * d
    else:
        norms = (
            2 * (4 + 4) * d
        )  # input and normalized input; the matmuls' input is the norm's output
        norms += 2 * 4 * d
    attention = attention_bytes(shape, precision)
    if shape.qk_norm:
        attention += (4 + width) * (q + k) + 4 * (shape.heads + shape.kv_heads)
    statistics = 4 * shape.heads + 2 * 4  # of the softmax, and of both norms
    kept = 3 if compiled and precision.parameters == "bfloat16" else 4
    return norms + attention + width * kept * shape.ffn + statistics


def attention_bytes(shape: ModelShape, precision: Precision) -> int:
    """Bytes of one token that the attention of one layer keeps: query, key, value and output."""
    return precision.compute_bytes * (2 * shape.query_width + 2 * shape.kv_width)


def checkpoint_bytes(shape: ModelShape, precision: Precision) -> int:
    """Bytes of one token that one layer keeps when it is recomputed: its input."""
    return precision.weight_bytes * shape.hidden


def last_norm_bytes(shape: ModelShape, precision: Precision) -> int:
    """Bytes of one token after the layers: the last norm, the chosen hidden states and their gradient."""
    norm = 12 if precision.parameters == "float32" else 8
    return (norm + 2 * precision.weight_bytes) * shape.hidden


def layer_backward_bytes(shape: ModelShape, precision: Precision) -> int:
    """Bytes of one token that the backward pass of one layer holds beside what was kept: of the feed-forward part two
    gradients more than it has freed, and gradients of the hidden states."""
    return precision.compute_bytes * 2 * shape.ffn + 8 * shape.hidden


def weight_gradient_bytes(shape: ModelShape, precision: Precision) -> int:
    """Bytes of the gradient of a layer's largest weight, in each type through which it goes."""
    width = precision.weight_bytes + (precision.compute_bytes if precision.casts else 0)
    return width * shape.hidden * shape.ffn


def scoring_bytes(shape: ModelShape, precision: Precision) -> int:
    """Bytes of one token while a pass without gradients is in its widest layer: the feed-forward part's three arrays
    beside the hidden states."""
    return (
        precision.compute_bytes * 3 * shape.ffn
        + (2 * precision.weight_bytes + precision.compute_bytes) * shape.hidden
    )
