"""Bytes of activations that a forward pass keeps for one token, in each module of a Transformers layer.

Axes of widths: D hidden, Q queries, K keys (and values), F feed-forward, V vocabulary. An array of one width takes 2
bytes per element in bfloat16 and 4 in float32.

A pass of the real model on the meta device gives the same bytes in seconds, not in 0.1 ms (docs/measurements.md,
``benchmarks/plan_layers.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .measured_towers import MeasuredTower
from .precision import Precision
from .shapes import ModelShape
from .towers import TowerShape


def layer_bytes(
    shape: ModelShape, precision: Precision, *, compiled: bool = False, layer: int = 0
) -> float:
    """Return the bytes of one token that one layer keeps for its backward pass.

    - A norm keeps its input and the normalized input. Both are float32 under autocast; with bfloat16 parameters the
      normalized input is bfloat16.
    - A matmul keeps its input. Under autocast each matmul casts its input anew: three casts of the first norm's output,
      two of the second norm's.
    - Attention keeps queries, keys, values and output.
    - The feed-forward part keeps gate, silu(gate), up and silu(gate) * up.
    - Experts keep as much for each copy of a token, and its input and output (``ExpertsShape.kept``).
    - Linear attention keeps what ``RecurrentShape.kept`` says, in the place of attention.

    Args:
        layer: number of the layer, of which some families have several kinds.
        compiled: layers are compiled. With bfloat16 parameters norms then keep both inputs in bfloat16, and the
            backward pass computes silu(gate) again; norms of queries and keys keep their input alone. Otherwise without
            effect.
    """
    if shape.measured is not None:
        return shape.measured.kept(precision).layers[layer]
    d, q, k = shape.hidden, shape.query_width, shape.kv_width
    width = precision.compute_bytes
    if compiled and precision.parameters == "bfloat16":
        norms = 2 * (2 + 2) * d
    elif precision.casts:
        norms = (4 + 4) * 2 * d + width * _casts(shape, layer) * d
    elif precision.compute == "bfloat16":
        norms = 2 * (4 + 2 + 2) * d
    else:
        # Input and normalized input of both norms, then the norms' outputs, which the matmuls keep.
        norms = 2 * (4 + 4) * d + 2 * 4 * d
    norms += _further_norms(shape, precision, compiled=compiled)
    fuses = compiled and precision.parameters == "bfloat16"
    if shape.float_norms and precision.parameters == "bfloat16" and not fuses:
        norms += 2 * 2 * d
    kept = 3 if fuses else 4
    experts = shape.experts_in(layer)
    feed_forward = width * kept * shape.ffn
    if experts is not None:
        feed_forward = experts.kept(d, width, precision.weight_bytes)
    recurrent = shape.recurrent
    if recurrent is not None and shape.is_recurrent(layer):
        mixer = recurrent.kept(width, casts=precision.casts)
        return norms + mixer + feed_forward + NORM_NUMBERS
    attention = attention_bytes(shape, precision)
    attention += (2 if width == 2 else 3) * width * q if shape.gated else 0
    if shape.qk_norm:
        normalized = 4 if shape.float_norms else width
        attention += (2 if fuses else 4 + normalized) * (q + k)
        attention += 4 * (shape.heads + shape.kv_heads)
    return norms + attention + feed_forward + _statistics(shape)


def layers_bytes(shape: ModelShape, precision: Precision, *, compiled: bool = False) -> list[float]:
    """Return ``layer_bytes`` of each layer."""
    every = range(shape.layers)
    return [layer_bytes(shape, precision, compiled=compiled, layer=layer) for layer in every]


def _casts(shape: ModelShape, layer: int) -> int:
    """Return how often autocast casts the norms' outputs of a layer: once for each matmul that reads one."""
    experts = shape.experts_in(layer)
    is_recurrent = shape.recurrent is not None and shape.is_recurrent(layer)
    mixer = shape.recurrent.inputs if shape.recurrent is not None and is_recurrent else 3
    return mixer + (2 if experts is None else 4 if experts.shared else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedLayer:
    """Arrays that one layer keeps for its backward pass beside fixed weights. A fixed weight's matmul keeps no input:
    an array is kept only if the adapter reads it."""

    first_norm: bool = False
    """Whether the first norm's output is kept, which the projections of queries, keys and values read."""
    second_norm: bool = False
    """Whether the second norm's output is kept, which the feed-forward part reads."""
    attention: bool = False
    """Whether the attention's output is kept by the projection that reads it; attention itself keeps it in any case."""
    product: bool = False
    """Whether silu(gate) * up is kept."""
    trained_norms: int = 0
    """Number of the two norms that are trained."""
    number: int = field(default=0, compare=False)
    """Number of the layer, of which some families have several kinds."""
    sums: int = 0
    """Number of weights in stacks of experts to which the adapter adds factors in each pass."""
    own: float
    """Bytes of one token that the adapter's own operations keep: products with the first factor, casts, masks."""
    is_whole: bool = False
    """Whether ``own`` is all that the layer keeps, as in families without closed forms."""


def adapted_layer_bytes(
    shape: ModelShape, precision: Precision, layer: AdaptedLayer, *, compiled: bool = False
) -> float:
    """Return the bytes of one token that one layer keeps for its backward pass under an adapter.

    They are those of ``layer_bytes`` but for the arrays of which only a weight's gradient has use: the normalized input
    of a norm that is fixed, and inputs of matmuls that the adapter does not keep.

    Args:
        compiled: see ``layer_bytes``. An array that the adapter keeps is taken to be kept by compiled layers too.
    """
    if layer.is_whole:
        return layer.own
    d, q, k = shape.hidden, shape.query_width, shape.kv_width
    fuses = compiled and precision.parameters == "bfloat16"
    normalized = 4 if precision.parameters == "float32" else 2
    norms = 2 * (2 if fuses else 4) * d + (0 if fuses else layer.trained_norms * normalized * d)
    norms += _further_norms(shape, precision, compiled=compiled)
    norms += (layer.first_norm + layer.second_norm) * precision.weight_bytes * d
    width = precision.compute_bytes
    kept = (2 if fuses else 3) + layer.product
    experts, recurrent = shape.experts_in(layer.number), shape.recurrent
    feed_forward = width * kept * shape.ffn
    if experts is not None:
        feed_forward = experts.kept(d, width, precision.weight_bytes, fixed=True)
        feed_forward += width * layer.product * experts.shared
        if (
            layer.sums
        ):  # a sum has a gradient, so the experts keep what they read, as where they are trained
            feed_forward += precision.weight_bytes * experts.chosen * (d + experts.width)
    if recurrent is not None and shape.is_recurrent(layer.number):
        mixer = recurrent.kept(width, casts=precision.casts, fixed=True)
        mixer += width * layer.attention * recurrent.heads * recurrent.value
        return norms + mixer + feed_forward + NORM_NUMBERS + layer.own
    attention = attention_bytes(shape, precision)
    attention += (1 if width == 2 else 2) * width * q if shape.gated else 0
    attention += width * q if shape.gated and layer.attention else 0
    if shape.qk_norm:
        attention += (2 if fuses else 4) * (q + k) + 4 * (shape.heads + shape.kv_heads)
    return norms + attention + feed_forward + _statistics(shape) + layer.own


def _further_norms(shape: ModelShape, precision: Precision, *, compiled: bool) -> int:
    """Return the extra bytes per token of a layer with four norms (Gemma 3) over one with two.

    Each further norm keeps input, normalized input and a number. Both inputs are float32 in all norms of such a layer,
    also with bfloat16 parameters, and in norms of queries and keys. Compiled: not measured.
    """
    further = shape.norms - 2
    if not further:
        return 0
    if compiled and precision.parameters == "bfloat16":
        return further * (4 * shape.hidden + 4)
    first = 2 * 2 * shape.hidden if precision.parameters == "bfloat16" else 0
    heads = (4 - precision.compute_bytes) * (shape.query_width + shape.kv_width)
    return further * (8 * shape.hidden + 4) + first + (heads if shape.qk_norm else 0)


NORM_NUMBERS = 2 * 4
"""Bytes of one number for each of two norms."""


def _statistics(shape: ModelShape) -> int:
    """Return the bytes of the softmax's log-sum for each head, and of one number for each of two norms."""
    return 4 * shape.heads + NORM_NUMBERS


def tower_bytes(
    tower: TowerShape | MeasuredTower | None, image_tokens: int, precision: Precision
) -> float:
    """Return the bytes that a trained vision tower keeps of images with this many features for its backward pass.

    Counted as a decoder layer with kv_heads = heads, minus up to two casts of a norm's output, and minus two
    feed-forward arrays where there is no gate; a merger keeps its normalized input and what its matmuls
    and GELU read. A counted tower keeps what its own code does. It is not recomputed. Not measured.
    """
    if tower is None or not image_tokens:
        return 0
    if isinstance(tower, MeasuredTower):
        return tower.kept_bytes(image_tokens, precision)
    layer = ModelShape(
        hidden=tower.hidden,
        layers=1,
        heads=tower.heads,
        kv_heads=tower.heads,
        head_dim=tower.hidden // tower.heads,
        ffn=tower.ffn,
        vocab=1,
        tied=True,
    )
    # Without a gate GELU's input and output are kept, in the place of gate, silu(gate), up and their product.
    ungated = 0 if tower.gated else 2 * precision.compute_bytes * tower.ffn
    each = tower.layers * (layer_bytes(layer, precision) - ungated)
    last = tower.projector_bytes(image_tokens, precision.compute_bytes)
    return tower.patches(image_tokens) * each + last


def tower_scoring_bytes(
    tower: TowerShape | MeasuredTower, image_tokens: int, precision: Precision
) -> float:
    """Return the bytes of images with this many features at the widest point of a pass without gradients."""
    if isinstance(tower, MeasuredTower):
        return tower.widest_bytes(image_tokens, precision)
    each = precision.compute_bytes * tower.ffn_matrices * tower.ffn
    each += (2 * precision.weight_bytes + precision.compute_bytes) * tower.hidden
    return tower.patches(image_tokens) * each


def attention_bytes(shape: ModelShape, precision: Precision) -> int:
    """Return the bytes of one token that the attention of one layer keeps: query, key, value and output."""
    return precision.compute_bytes * (2 * shape.query_width + 2 * shape.kv_width)


def checkpoint_bytes(shape: ModelShape, precision: Precision) -> float:
    """Return the bytes of one token that a recomputed layer keeps: the layer's input."""
    if shape.measured is not None:
        return shape.measured.kept(precision).checkpoint
    return precision.weight_bytes * shape.hidden


def last_norm_bytes(
    shape: ModelShape, precision: Precision, *, fixed: bool = False, outside: float | None = None
) -> float:
    """Return the bytes of one token behind the layers: last norm, hidden states at predictors and their gradient.

    Args:
        fixed: the norm is not trained, so its normalized input is not kept.
        outside: what is kept outside of the layers under an adapter, of a family without closed forms.
    """
    if shape.measured is not None:
        kept = shape.measured.kept(precision).outside if outside is None else outside
        return kept + 2 * precision.weight_bytes * shape.hidden
    norm = 12 if precision.parameters == "float32" else 8
    norm -= precision.weight_bytes if fixed else 0
    return (norm + 2 * precision.weight_bytes) * shape.hidden


def layer_backward_bytes(shape: ModelShape, precision: Precision) -> int:
    """Return the bytes of one token that the backward pass of one layer needs beside the kept activations.

    These are two gradients of width F more than the feed-forward part has freed, and gradients of the hidden states.
    """
    widest = precision.compute_bytes * 2 * shape.ffn
    if shape.experts is not None:
        widest = max(widest, shape.experts.backward(shape.hidden, precision.weight_bytes))
    return widest + 8 * shape.hidden


def weight_gradient_bytes(shape: ModelShape, precision: Precision) -> int:
    """Return the bytes of the gradient of a layer's largest matrix, in the types of matmul and parameter, or of its
    largest stack of experts, in the type of the parameters.

    The largest matrix is (D, F), and the larger of both stacks has two thirds of the experts' weights; both are counted
    in a family without closed forms.
    """
    width = precision.weight_bytes + (precision.compute_bytes if precision.casts else 0)
    matrix, stack = shape.hidden * shape.ffn, 0
    if shape.measured is not None:
        matrix, stack = shape.measured.counts.largest_matrix, shape.measured.counts.largest_stack
    elif shape.experts is not None:
        stack = 2 * shape.experts.stacked(shape.hidden) // 3
    return max(width * matrix, precision.weight_bytes * stack)


def scoring_bytes(shape: ModelShape, precision: Precision) -> int:
    """Return the bytes of one token at the widest point of a pass without gradients.

    These are the three arrays of the feed-forward part (gate, up and their product) beside the hidden states.
    """
    widest = precision.compute_bytes * 3 * shape.ffn
    if shape.experts is not None:
        widest = max(widest, shape.experts.widest(shape.hidden, precision.weight_bytes))
    return widest + (2 * precision.weight_bytes + precision.compute_bytes) * shape.hidden
