"""GPU memory of one role in a training backend: resident parts, and the parts of its largest moments.

*Resident* parts stay for the whole run. A *moment* is a time at which memory may peak, with the parts that exist beside
the resident parts at that time. The peak is the sum of the resident parts and of the largest moment.

Some weights a pass makes of others. A base in 4 bits is unpacked one matrix at a time. An adapter of stacked experts
adds its factors to a layer's stacks in each pass: the sums are kept for the backward pass like activations, and have
gradients while a layer is worked on.

P is a number of parameters, N a number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..machine import assumptions as assumed
from ..model.activations import (
    adapted_layer_bytes,
    attention_bytes,
    checkpoint_bytes,
    last_norm_bytes,
    layer_backward_bytes,
    layers_bytes,
    scoring_bytes,
    tower_bytes,
    tower_scoring_bytes,
    weight_gradient_bytes,
)
from ..model.adapters import AdapterCounts
from ..model.precision import Precision
from ..model.shapes import ModelShape
from .role import (
    MicroBatch,
    Role,
    outside_of_layers,
    trained_outside_of_layers,
    trained_parameters,
    trained_tower,
    updated_parameters,
    weight_bytes,
)
from .sharing import Sharing

Parts = Mapping[str, float]
"""Bytes of each part, by the part's name in the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleMemory:
    """Memory of one role on one GPU."""

    resident: Parts
    """Parts that stay for the whole run."""
    moment: str
    """Name of the largest moment."""
    transient: Parts
    """Parts of the largest moment."""

    @property
    def resident_bytes(self) -> float:
        return sum(self.resident.values())

    @property
    def transient_bytes(self) -> float:
        return sum(self.transient.values())

    @property
    def peak_bytes(self) -> float:
        """Bytes of resident parts and largest moment."""
        return self.resident_bytes + self.transient_bytes


def role_memory(role: Role, sharing: Sharing, batch: MicroBatch) -> RoleMemory:
    """Return the memory of one rank of a role."""
    found = moments(role, sharing, batch)
    moment = max(found, key=lambda name: sum(found[name].values()))
    resident = _clean(_resident(role, sharing))
    return RoleMemory(resident=resident, moment=moment, transient=found[moment])


def moments(role: Role, sharing: Sharing, batch: MicroBatch) -> Mapping[str, Parts]:
    """Return the parts of each moment of a role, by the moment's name."""
    return {name: _clean(parts) for name, parts in _moments(role, sharing, batch)}


def _resident(role: Role, sharing: Sharing) -> Parts:
    """Return the resident parts: weights, float32 copies, optimizer state, average and reference; of ZeRO stage 3 also
    gradients."""
    width, shape = role.precision.weight_bytes, role.shape
    trained = trained_parameters(role) if role.trained else 0
    weights = weight_bytes(role) * sharing.part(3)
    if sharing.layerwise:
        weights += (4.0 - width) * trained * sharing.part(3)
    elif sharing.stage == 3:
        weights = 0.0 if sharing.offload_parameters else weights
        if role.has_head:
            weights += width * shape.head_weights
    parts = {"weights": weights}
    if not role.trained:
        return parts
    on_gpu = 0.0 if sharing.offload_optimizer else sharing.part(1)
    # DeepSpeed's optimizers keep float32 copies of float32 weights too.
    copied = (width == 2 or sharing.stage >= 1) and not sharing.layerwise
    tables = trained - shape.layer_parameters - shape.hidden - trained_tower(role)
    if role.adapter is not None:
        tables = role.adapter.tables
    inner = updated_parameters(role, sharing) - tables
    parts["float32 copies"] = 4.0 * trained * on_gpu if copied else 0.0
    parts["optimizer state"] = on_gpu * (
        role.optimizer_bytes * inner + role.optimizer_table_bytes * tables
    )
    parts["moving average"] = 4.0 * trained * on_gpu if role.average else 0.0
    parts["reference"] = 4.0 * trained * on_gpu if role.reference else 0.0
    if sharing.stage == 3 and not sharing.offload_optimizer and not sharing.layerwise:
        parts["gradients"] = 4.0 * trained * sharing.part(2)
    return parts


def _moments(role: Role, sharing: Sharing, batch: MicroBatch) -> Iterator[tuple[str, Parts]]:
    shape = role.shape
    if role.scores:
        scores = _scores(role, assumed.SCORES_FORWARD)
        yield "scoring", {**_scoring(role, batch), **scores, **_collected(role, sharing)}
    if shape.vision is not None and batch.image_tokens:
        reading = float(tower_scoring_bytes(shape.vision, batch.image_tokens, role.precision))
        yield "reading images", {"vision tower": reading, **_collected(role, sharing)}
    if not role.trained:
        return
    trained = updated_parameters(role, sharing)
    gradients = _gradients(role, sharing)
    common = {
        "gradients": gradients if batch.several or sharing.in_passing else 0.0,
        "gradient buckets": _buckets(sharing),
        **_collected(role, sharing),
    }
    kept = _kept(role, batch)
    if role.has_head:
        yield "backward of the head", {**common, **kept, **_head_work(role, batch)}
    # Autocast keeps the casts of trained weights until a pass ends, of fixed ones only while in use.
    if role.recompute and role.precision.casts and role.adapter is None:
        casts = float(role.precision.compute_bytes * role.shape.linear_weights)
        yield "end of the forward pass", {**common, **kept, "weights cast to bfloat16": casts}
    working = {"layer being worked on": _layer_work(role, batch), **_weight_work(role)}
    working |= _scores(role, assumed.SCORES_BACKWARD)
    working["gradients on their way"] = _traveling(role, sharing)
    head_gradient = _trained_head(role) * role.precision.weight_bytes
    yield "backward", {**common, **kept, **working, "gradient of the head": head_gradient}
    # With several micro-batches the bfloat16 gradients of one micro-batch exist beside the float32 sum until they are
    # added to the sum. The gradients of a single micro-batch become the sum one after the other and are freed.
    adds = role.precision.weight_bytes == 2 and sharing.stage < 2 and batch.several
    own = {"gradients of a micro-batch": 2.0 * trained if adds else 0.0}
    if sharing.layerwise and role.adapter is None:
        # Those of embeddings and head come last, whole and once more in float32, in which they are summed.
        each = 4.0 + role.precision.weight_bytes
        own = {"gradients on their way": each * trained_outside_of_layers(role)}
    yield "end of a micro-batch", {**common, "gradients": gradients, **own}
    flat = {"flat copy of the gradients": gradients if sharing.stage == 2 else 0.0}
    yield "update", {**common, "gradients": gradients, **flat}


def _scores(role: Role, size: int) -> Parts:
    """Return the scores of some queries as a part, where attention has them in memory."""
    measured = role.shape.measured
    holds = measured is not None and measured.counts.holds_scores
    return {"scores of some queries": float(size) if holds else 0.0}


def _gradients(role: Role, sharing: Sharing) -> float:
    """Return the bytes of the float32 sums over micro-batches; of ZeRO stage 3 they are a resident part instead."""
    resident = sharing.stage == 3 and not sharing.layerwise
    if resident or (sharing.offload_optimizer and sharing.stage == 2):
        return 0.0
    return 4.0 * updated_parameters(role, sharing) * sharing.part(2)


def _buckets(sharing: Sharing) -> float:
    if sharing.stage < 1 or sharing.in_passing:
        return 0.0
    return 4.0 * sharing.reduce_bucket * (2 if sharing.overlap else 1)


def _traveling(role: Role, sharing: Sharing) -> float:
    """Return the bytes of gradients that leave and arrive at once in the backward pass."""
    numbers = min(assumed.TRAVELING * sharing.reduce_bucket, trained_parameters(role))
    return 2.0 * role.precision.weight_bytes * numbers * sharing.in_passing


def _collected(role: Role, sharing: Sharing) -> Parts:
    """Return the weights of other ranks that stage 3 keeps collected, as a part."""
    if sharing.stage != 3:
        return {}
    live = min(sharing.live_parameters, role.shape.layer_parameters)
    live += outside_of_layers(role) if sharing.layerwise else 0
    return {"weights of other ranks": float(role.precision.weight_bytes * live)}


def _kept(role: Role, batch: MicroBatch) -> Parts:
    """Return the parts that the forward pass keeps for the backward pass."""
    shape, precision = role.shape, role.precision
    layers = sum(_layers_keep(role, batch))
    if role.recompute:
        layers = shape.layers * float(batch.computed) * checkpoint_bytes(shape, precision)
    is_cast = precision.casts and not role.recompute and not _is_quantized(role.adapter)
    casts = float(precision.compute_bytes * shape.linear_weights) if is_cast else 0.0
    last = last_norm_bytes(
        shape,
        precision,
        fixed=role.adapter is not None,
        outside=None if role.adapter is None else role.adapter.outside,
    )
    tower = float(tower_bytes(shape.vision, batch.image_tokens, precision))
    return {
        "activations": layers,
        "activations of the vision tower": 0.0 if role.frozen_tower else tower,
        "last norm and hidden states": float(batch.computed) * last,
        "sums of experts and factors": _kept_sums(
            role.adapter, precision, recompute=role.recompute
        ),
        "routes": float(batch.tokens) * shape.route_bytes if role.replays else 0.0,
        "weights cast to bfloat16": casts,
    }


def _layer_work(role: Role, batch: MicroBatch) -> float:
    work = float(batch.tokens) * layer_backward_bytes(role.shape, role.precision)
    return work + (max(_layers_keep(role, batch), default=0.0) if role.recompute else 0.0)


def _weight_work(role: Role) -> Parts:
    """Return the parts of one matrix in the backward pass: its gradient, and its weights out of their few bits."""
    shape, precision = role.shape, role.precision
    if role.adapter is None:
        return {"gradient of a weight": float(weight_gradient_bytes(shape, precision))}
    return {
        "gradient of a weight": float(precision.weight_bytes * role.adapter.largest),
        **_made_weights(role.adapter, shape, precision, keeps=not role.recompute),
        "gradient of a layer's sums": _largest_sums(role.adapter, precision),
    }


def _layers_keep(role: Role, batch: MicroBatch) -> list[float]:
    """Return the bytes that each layer keeps for its backward pass; layers without a gradient are left out.

    With shared prompts attention keeps its arrays for whole sequences, prompts repeated. The layer's next matmul then
    keeps a separate array without the repetitions.
    """
    shape, precision = role.shape, role.precision
    if role.adapter is None:
        tokens = [(each, True) for each in layers_bytes(shape, precision, compiled=role.compiled)]
    else:
        tokens = [
            (adapted_layer_bytes(shape, precision, each, compiled=role.compiled), each.attention)
            for each in role.adapter.layers
        ]
    kept = []
    for each, next_keeps_input in tokens:
        size = float(batch.computed) * each
        if batch.repeated:
            size += float(batch.repeated) * attention_bytes(shape, precision)
            if next_keeps_input:
                size += float(batch.computed) * precision.compute_bytes * shape.query_width
        kept.append(size)
    return kept


def _trained_head(role: Role) -> int:
    """Return the number of weights of the output head that get a gradient."""
    if not role.has_head:
        return 0
    return role.shape.head_weights if role.adapter is None else role.adapter.head


def _head_work(role: Role, batch: MicroBatch) -> Parts:
    """Return the parts of the head's backward pass over one chunk: logits, and the gradient of the head's weights.

    The float32 sum of the gradient over chunks exists beside the gradient of one chunk. Under autocast a chunk's
    gradient is bfloat16, and the head's weights have a bfloat16 cast.
    """
    trained, precision = _trained_head(role), role.precision
    eager = precision.compute_bytes + assumed.CHUNK_EAGER
    each = assumed.CHUNK_FUSED * precision.compute_bytes if role.fused_head else eager
    made = precision.weight_bytes + (precision.compute_bytes if precision.casts else 0)
    casts = precision.compute_bytes * role.shape.head_weights if precision.casts else 0
    return {
        "logits of a chunk": float(min(role.chunk, batch.actions)) * role.shape.vocab * each,
        "gradient of the head": float((4 + made) * trained),
        "head cast to bfloat16": float(casts),
    }


def _scoring(role: Role, batch: MicroBatch) -> Parts:
    """Return the parts of a pass without gradients; autocast keeps the casts of trained weights until the pass ends."""
    shape, precision = role.shape, role.precision
    each = precision.compute_bytes
    if not role.fused_head:
        each = assumed.CHUNK_SCORING_SCALED if role.scales_logits else assumed.CHUNK_SCORING
    chunk = min(role.chunk, batch.actions) * shape.vocab if role.has_head else 0
    widest = float(batch.tokens) * scoring_bytes(shape, precision)
    is_cast = precision.casts and role.trained and role.adapter is None
    casts = precision.compute_bytes * shape.linear_weights if is_cast else 0
    after = float(batch.tokens) * last_norm_bytes(shape, precision)
    after += chunk * each
    return {
        "activations": max(widest, after),
        "weights cast to bfloat16": float(casts),
        **_made_weights(role.adapter, shape, precision),
    }


def _is_quantized(adapter: AdapterCounts | None) -> bool:
    """Return whether the base under an adapter is quantized."""
    return adapter is not None and adapter.linear_weight_bytes is not None


def _made_weights(
    adapter: AdapterCounts | None, shape: ModelShape, precision: Precision, *, keeps: bool = False
) -> dict[str, float]:
    """Return the parts of one layer: the largest matrix of a quantized base in the type of the matmuls, and the sums.

    Args:
        keeps: the sums of all layers are there already (``_kept_sums``).
    """
    size = float(precision.compute_bytes * shape.hidden * shape.ffn)
    return {
        "quantized weights as a matrix": size if _is_quantized(adapter) else 0.0,
        "sums of a layer's experts": 0.0 if keeps else _largest_sums(adapter, precision),
    }


def _kept_sums(adapter: AdapterCounts | None, precision: Precision, *, recompute: bool) -> float:
    """Return the bytes of all layers' sums, which the forward pass keeps unless layers are recomputed."""
    return 0.0 if recompute else float(precision.weight_bytes * sum(_sums(adapter)))


def _largest_sums(adapter: AdapterCounts | None, precision: Precision) -> float:
    """Return the bytes of one layer's sums, which are also those of their gradient."""
    return float(precision.weight_bytes * max(_sums(adapter)))


def _sums(adapter: AdapterCounts | None) -> list[int]:
    """Return the number of weights in the sums of each layer, and 0."""
    return [0, *(layer.sums for layer in (adapter.layers if adapter else ()))]


def _clean(parts: Parts) -> Parts:
    return {name: size for name, size in parts.items() if size > 0}
