"""GPU memory of one role in a training backend: resident parts, and the parts of its largest moments.

*Resident* parts stay for the whole run. A *moment* is a time at which memory may peak, with the parts that exist beside
the resident parts at that time. The peak is the sum of the resident parts and of the largest moment.

P is a number of parameters, N a number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..machine import assumptions as assumed
from ..model.activations import (
    Precision,
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
from ..model.shapes import ModelShape
from .made_weights import is_quantized, kept_sums, largest_sums, made_weights

Parts = Mapping[str, float]
"""Bytes of each part, by the part's name in the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Properties of a role on which its memory depends."""

    name: str
    """Name of the role."""
    shape: ModelShape
    """Shape of the model on one rank: ``ModelShape.part`` if ranks share every matrix."""
    precision: Precision
    """Types of parameters and matmuls."""
    trained: bool
    """Whether the role is trained."""
    has_head: bool
    """Whether the role computes logits; a critic does not."""
    optimizer_bytes: float = 8.0
    """Bytes of optimizer state of one parameter of the layers."""
    optimizer_table_bytes: float = 8.0
    """Bytes of optimizer state of one parameter of embeddings and head."""
    scores: bool = True
    """Whether the role makes passes without gradients."""
    average: bool = False
    """Whether the role keeps a moving average of its weights."""
    recompute: bool = False
    """Whether the backward pass recomputes each layer."""
    compiled: bool = False
    """Whether layers are compiled, which fuses operations so that fewer results are kept."""
    chunk: int = assumed.GPU_CHUNK
    """Number of action tokens whose logits are in memory at once."""
    scales_logits: bool = False
    """Whether the temperature differs from 1."""
    fused_head: bool = True
    """Whether one kernel reads the head's product, forwards and backwards; not in distillation over several tokens."""
    frozen_tower: bool = False
    """Whether the vision tower is not trained."""
    replays: bool = False
    """Whether tokens go to the experts that the engine chose."""
    adapter: AdapterCounts | None = None
    """The adapter that is trained beside the fixed weights of the role; None: the weights themselves are trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """State that the ranks of a role share, as DeepSpeed's options; stage 0 with one rank for the torch backend."""

    stage: int = 0
    """ZeRO stage, 0 to 3."""
    ranks: int = 1
    """Number N of ranks among which ZeRO shares; ranks that share every matrix count as one."""
    offload_optimizer: bool = False
    """Whether float32 weights and optimizer state are in host memory."""
    offload_parameters: bool = False
    """Whether the shared weights of stage 3 are in host memory."""
    reduce_bucket: int = 0
    """Number of float32 elements of one bucket of gradients."""
    overlap: bool = False
    """Whether gradients are summed during the backward pass, which takes a second bucket."""
    in_passing: bool = False
    """Whether gradients travel in their own type while the backward pass goes on, and the sum goes to the ranks that
    update it at the end: stage 2, with whole matrices and with state on the GPU."""
    live_parameters: int = assumed.LIVE_PARAMETERS
    """Largest number of parameters that stage 3 keeps collected."""
    masters_only: bool = False
    """Whether trained weights are float32 at stage 3, without a rounded copy beside them: the ``fsdp`` backend."""

    def part(self, stage: int) -> float:
        """Return the part of a state that one rank has, if ranks share the state from ``stage`` on: 1 / N or 1."""
        return 1.0 / self.ranks if self.stage >= stage else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The largest micro-batch of an update, on one rank."""

    tokens: int
    """Number of tokens."""
    actions: int
    """Number of action tokens."""
    several: bool
    """Whether an update has several micro-batches, so that gradients and activations exist at the same time."""
    repeated: int = 0
    """Number of the tokens that belong to a prompt of another sequence too; only attention computes them again."""
    image_tokens: int = 0
    """Number of features of the micro-batch's images, each image once."""

    @property
    def computed(self) -> int:
        """Number of tokens that the layers compute."""
        return self.tokens - self.repeated


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
        """Bytes of the resident parts."""
        return sum(self.resident.values())

    @property
    def transient_bytes(self) -> float:
        """Bytes of the largest moment."""
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


def trained_parameters(role: Role) -> int:
    """Return the number of parameters that the optimizer updates: the adapter's, or else all but a critic's unused
    output head and a frozen vision tower; a projector beside it is trained all the same."""
    if role.adapter is not None:
        return role.adapter.trained
    unused = role.shape.head_weights if not role.has_head and not role.shape.tied else 0
    return role.shape.parameters - unused - role.shape.tower_parameters + _trained_tower(role)


def _trained_tower(role: Role) -> int:
    """Return the number of parameters that are trained as a whole: of a vision tower, and of a projector beside it."""
    if role.adapter is not None:
        return 0
    return role.shape.projector_parameters if role.frozen_tower else role.shape.tower_parameters


def weight_bytes(role: Role) -> float:
    """Return the bytes of all weights of a role on one rank: base and adapter."""
    width, shape = role.precision.weight_bytes, role.shape
    weights = float(width * shape.parameters)
    if role.adapter is not None:
        weights += width * role.adapter.trained
        if role.adapter.linear_weight_bytes is not None:
            weights += (role.adapter.linear_weight_bytes - width) * shape.linear_weights
    return weights


def _resident(role: Role, sharing: Sharing) -> Parts:
    """Return the resident parts: weights, float32 copies, optimizer state, average; at stage 3 also gradients."""
    width, shape = role.precision.weight_bytes, role.shape
    weights = weight_bytes(role) * sharing.part(3)
    if sharing.stage == 3:
        own = sharing.masters_only and role.trained and role.adapter is None
        weights = 0.0 if sharing.offload_parameters or own else weights
        if role.has_head:
            weights += width * shape.head_weights
    parts = {"weights": weights}
    if not role.trained:
        return parts
    trained = trained_parameters(role)
    on_gpu = 0.0 if sharing.offload_optimizer else sharing.part(1)
    # DeepSpeed's optimizers keep float32 copies of float32 weights too.
    copied = width == 2 or sharing.stage >= 1
    tables = trained - shape.layer_parameters - shape.hidden - _trained_tower(role)
    if role.adapter is not None:
        tables = role.adapter.tables
    inner = trained - tables
    parts["float32 copies"] = 4.0 * trained * on_gpu if copied else 0.0
    parts["optimizer state"] = on_gpu * (
        role.optimizer_bytes * inner + role.optimizer_table_bytes * tables
    )
    parts["moving average"] = 4.0 * trained * on_gpu if role.average else 0.0
    if sharing.stage == 3 and not sharing.offload_optimizer:
        parts["gradients"] = 4.0 * trained * sharing.part(2)
    return parts


def _moments(role: Role, sharing: Sharing, batch: MicroBatch) -> Iterator[tuple[str, Parts]]:
    shape = role.shape
    if role.scores:
        yield "scoring", {**_scoring(role, batch), **_collected(role, sharing)}
    if shape.tower is not None and batch.image_tokens:
        reading = float(tower_scoring_bytes(shape.tower, batch.image_tokens, role.precision))
        yield "reading images", {"vision tower": reading, **_collected(role, sharing)}
    if not role.trained:
        return
    trained = trained_parameters(role)
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
    working["gradients on their way"] = _traveling(role, sharing)
    head_gradient = _trained_head(role) * role.precision.weight_bytes
    yield "backward", {**common, **kept, **working, "gradient of the head": head_gradient}
    # With several micro-batches the bfloat16 gradients of one micro-batch exist beside the float32 sum until they are
    # added to the sum. The gradients of a single micro-batch become the sum one after the other and are freed.
    adds = role.precision.weight_bytes == 2 and sharing.stage < 2 and batch.several
    own = {"gradients of a micro-batch": 2.0 * trained if adds else 0.0}
    yield "end of a micro-batch", {**common, "gradients": gradients, **own}
    flat = {"flat copy of the gradients": gradients if sharing.stage == 2 else 0.0}
    yield "update", {**common, "gradients": gradients, **flat}


def _gradients(role: Role, sharing: Sharing) -> float:
    """Return the bytes of the float32 sums over micro-batches; at stage 3 they are a resident part instead."""
    if sharing.stage == 3 or (sharing.offload_optimizer and sharing.stage == 2):
        return 0.0
    return 4.0 * trained_parameters(role) * sharing.part(2)


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
    return {"weights of other ranks": float(role.precision.weight_bytes * live)}


def _kept(role: Role, batch: MicroBatch) -> Parts:
    """Return the parts that the forward pass keeps for the backward pass."""
    shape, precision = role.shape, role.precision
    layers = sum(_layers_keep(role, batch))
    if role.recompute:
        layers = shape.layers * float(batch.computed) * checkpoint_bytes(shape, precision)
    is_cast = precision.casts and not role.recompute and not is_quantized(role.adapter)
    casts = float(precision.compute_bytes * shape.linear_weights) if is_cast else 0.0
    last = last_norm_bytes(shape, precision, fixed=role.adapter is not None)
    tower = float(tower_bytes(shape.tower, batch.image_tokens, precision))
    return {
        "activations": layers,
        "activations of the vision tower": 0.0 if role.frozen_tower else tower,
        "last norm and hidden states": float(batch.computed) * last,
        "sums of experts and factors": kept_sums(role.adapter, precision, recompute=role.recompute),
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
        **made_weights(role.adapter, shape, precision, keeps=not role.recompute),
        "gradient of a layer's sums": largest_sums(role.adapter, precision),
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
        **made_weights(role.adapter, shape, precision),
    }


def _clean(parts: Parts) -> Parts:
    return {name: size for name, size in parts.items() if size > 0}
