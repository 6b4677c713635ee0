"""Weights that a pass makes of others, and their bytes: of 4 bits a matrix, of stacked experts and factors a sum.

A base in 4 bits is unpacked one matrix at a time. An adapter of stacked experts adds its factors to a layer's stacks in
each pass: the sums are kept for the backward pass like activations, and have gradients while a layer is worked on.
"""

from __future__ import annotations

from ..model.adapters import AdapterCounts
from ..model.precision import Precision
from ..model.shapes import ModelShape


def is_quantized(adapter: AdapterCounts | None) -> bool:
    """Return whether the base under an adapter is quantized."""
    return adapter is not None and adapter.linear_weight_bytes is not None


def made_weights(
    adapter: AdapterCounts | None, shape: ModelShape, precision: Precision, *, keeps: bool = False
) -> dict[str, float]:
    """Return the parts of one layer: the largest matrix of a quantized base in the type of the matmuls, and the sums.

    Args:
        keeps: the sums of all layers are there already (``kept_sums``).
    """
    size = float(precision.compute_bytes * shape.hidden * shape.ffn)
    return {
        "quantized weights as a matrix": size if is_quantized(adapter) else 0.0,
        "sums of a layer's experts": 0.0 if keeps else largest_sums(adapter, precision),
    }


def kept_sums(adapter: AdapterCounts | None, precision: Precision, *, recompute: bool) -> float:
    """Return the bytes of all layers' sums, which the forward pass keeps unless layers are recomputed."""
    return 0.0 if recompute else float(precision.weight_bytes * sum(_sums(adapter)))


def largest_sums(adapter: AdapterCounts | None, precision: Precision) -> float:
    """Return the bytes of one layer's sums, which are also those of their gradient."""
    return float(precision.weight_bytes * max(_sums(adapter)))


def _sums(adapter: AdapterCounts | None) -> list[int]:
    """Return the number of weights in the sums of each layer, and 0."""
    return [0, *(layer.sums for layer in (adapter.layers if adapter else ()))]
