"""GPU memory of one role in a training backend: what stays, and what its largest moments need beside that.

P is a number of parameters, N of ranks. A moment is a table of parts; the peak is what stays plus the largest moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from . import assumptions as assumed
from .activations import (
    Precision,
    attention_bytes,
    checkpoint_bytes,
    last_norm_bytes,
    layer_backward_bytes,
    layer_bytes,
    scoring_bytes,
    weight_gradient_bytes,
)
from .shapes import ModelShape

Parts = Mapping[str, float]
"""Bytes by what they are for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What the memory of a role depends on."""

    name: str
    shape: ModelShape
    """As one rank has it: ``ModelShape.part`` of the model where ranks share every matrix."""
    precision: Precision
    trained: bool
    has_head: bool
    """Makes logits; a critic does not."""
    optimizer_bytes: float = 8.0
    """State of one parameter of the layers."""
    optimizer_table_bytes: float = 8.0
    """State of one parameter of embeddings and head."""
    scores: bool = True
    """Makes passes without gradients."""
    average: bool = False
    """Keeps a moving average of its weights."""
    recompute: bool = False
    compiled: bool = False
    """Layers are compiled, which fuses operations whose results would be kept."""
    chunk: int = assumed.GPU_CHUNK
    scales_logits: bool = False
    """The temperature is not 1."""
    fused_head: bool = True
    """One kernel reads the head's products, forwards and backwards; not so in distillation over several tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How ranks share a role: DeepSpeed's options, or stage 0 with one rank for the torch backend."""

    stage: int = 0
    ranks: int = 1
    """Among which ZeRO shares: N over the number that share every matrix."""
    offload_optimizer: bool = False
    offload_parameters: bool = False
    reduce_bucket: int = 0
    """Elements of float32."""
    overlap: bool = False
    live_parameters: int = assumed.LIVE_PARAMETERS

    def part(self, stage: int) -> float:
        """1 / N from ``stage`` on, else 1."""
        return 1.0 / self.ranks if self.stage >= stage else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The largest of an update, on one rank."""

    tokens: int
    actions: int
    several: bool
    """An update has more than one, so gradients are there while activations are."""
    repeated: int = 0
    """Of ``tokens``, those of prompts that another of its sequences has too: only attention computes them again."""

    @property
    def computed(self) -> int:
        """Tokens that the model gets."""
        return self.tokens - self.repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleMemory:
    """One role on one GPU."""

    resident: Parts
    moment: str
    """When the peak is."""
    transient: Parts
    """Of that moment."""

    @property
    def resident_bytes(self) -> float:
        return sum(self.resident.values())

    @property
    def transient_bytes(self) -> float:
        return sum(self.transient.values())

    @property
    def peak_bytes(self) -> float:
        return self.resident_bytes + self.transient_bytes


def role_memory(role: Role, sharing: Sharing, batch: MicroBatch) -> RoleMemory:
    """Return what one rank of a role needs."""
    found = moments(role, sharing, batch)
    moment = max(found, key=lambda name: sum(found[name].values()))
    return RoleMemory(
        resident=_clean(_resident(role, sharing)), moment=moment, transient=found[moment]
    )


def moments(role: Role, sharing: Sharing, batch: MicroBatch) -> Mapping[str, Parts]:
    """Return what each of a role's large moments needs beside what stays."""
    return {name: _clean(parts) for name, parts in _moments(role, sharing, batch)}


def trained_parameters(role: Role) -> int:
    """Parameters that the optimizer has: all, but not the unused head of a critic."""
    unused = role.shape.head_weights if not role.has_head and not role.shape.tied else 0
    return role.shape.parameters - unused


def _resident(role: Role, sharing: Sharing) -> Parts:
    """Weights, their float32 copies, optimizer state, average; under stage 3 the buffer of gradients."""
    width, shape = role.precision.weight_bytes, role.shape
    weights = width * shape.parameters * sharing.part(3)
    if sharing.stage == 3:
        weights = 0.0 if sharing.offload_parameters else weights
        if role.has_head:
            weights += width * shape.head_weights
    parts = {"weights": weights}
    if not role.trained:
        return parts
    trained = trained_parameters(role)
    on_gpu = 0.0 if sharing.offload_optimizer else sharing.part(1)
    # DeepSpeed's optimizers keep float32 copies of float32 weights too.
    copied = width == 2 or sharing.stage >= 1
    tables = trained - shape.layer_parameters - shape.hidden
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
    if role.scores:
        yield "scoring", {**_scoring(role, batch), **_collected(role, sharing)}
    if not role.trained:
        return
    trained = trained_parameters(role)
    gradients = _gradients(role, sharing)
    common = {
        "gradients": gradients if batch.several else 0.0,
        "gradient buckets": _buckets(sharing),
        **_collected(role, sharing),
    }
    kept = _kept(role, batch)
    if role.has_head:
        yield "backward of the head", {**common, **kept, **_head_work(role, batch)}
    if role.recompute and role.precision.casts:
        casts = float(role.precision.compute_bytes * role.shape.layer_weights)
        yield "end of the forward pass", {**common, **kept, "weights cast to bfloat16": casts}
    working = {
        "layer being worked on": _layer_work(role, batch),
        "gradient of a weight": float(weight_gradient_bytes(role.shape, role.precision)),
    }
    head_gradient = _head_weights(role) * role.precision.weight_bytes
    yield "backward", {**common, **kept, **working, "gradient of the head": head_gradient}
    # bfloat16 gradients of one micro-batch stand beside the float32 sum until they are added to it; those of the only
    # one are freed as they become the sum.
    adds = role.precision.weight_bytes == 2 and sharing.stage < 2 and batch.several
    yield (
        "end of a micro-batch",
        {
            **common,
            "gradients": gradients,
            "gradients of a micro-batch": 2.0 * trained if adds else 0.0,
        },
    )
    flat = gradients if sharing.stage == 2 else 0.0
    yield "update", {**common, "gradients": gradients, "flat copy of the gradients": flat}


def _gradients(role: Role, sharing: Sharing) -> float:
    """float32 sums over micro-batches; under stage 3 they are among what stays."""
    if sharing.stage == 3 or (sharing.offload_optimizer and sharing.stage == 2):
        return 0.0
    return 4.0 * trained_parameters(role) * sharing.part(2)


def _buckets(sharing: Sharing) -> float:
    if sharing.stage < 1:
        return 0.0
    return 4.0 * sharing.reduce_bucket * (2 if sharing.overlap else 1)


def _collected(role: Role, sharing: Sharing) -> Parts:
    """Weights of other ranks that stage 3 has fetched."""
    if sharing.stage != 3:
        return {}
    live = min(sharing.live_parameters, role.shape.layer_parameters)
    return {"weights of other ranks": float(role.precision.weight_bytes * live)}


def _kept(role: Role, batch: MicroBatch) -> Parts:
    """What the forward pass leaves for the backward pass."""
    shape, precision = role.shape, role.precision
    each = _layer_keeps(role, batch)
    if role.recompute:
        each = float(batch.computed) * checkpoint_bytes(shape, precision)
    casts = 0.0
    if precision.casts and not role.recompute:
        casts = float(precision.compute_bytes * shape.layer_weights)
    return {
        "activations": shape.layers * each,
        "last norm and hidden states": float(batch.computed) * last_norm_bytes(shape, precision),
        "weights cast to bfloat16": casts,
    }


def _layer_work(role: Role, batch: MicroBatch) -> float:
    work = float(batch.tokens) * layer_backward_bytes(role.shape, role.precision)
    return work + (_layer_keeps(role, batch) if role.recompute else 0.0)


def _layer_keeps(role: Role, batch: MicroBatch) -> float:
    """What one layer keeps for its backward pass. Where prompts are shared, attention keeps what it made of whole
    sequences, and the output that goes on is another array than its own."""
    shape, precision = role.shape, role.precision
    kept = float(batch.computed) * layer_bytes(shape, precision, compiled=role.compiled)
    if batch.repeated:
        kept += float(batch.repeated) * attention_bytes(shape, precision)
        kept += float(batch.computed) * precision.compute_bytes * shape.query_width
    return kept


def _head_weights(role: Role) -> int:
    return role.shape.head_weights if role.has_head else 0


def _head_work(role: Role, batch: MicroBatch) -> Parts:
    """One chunk's backward pass: its logits, and the gradient of the head's weights.

    The gradient is summed over chunks in float32 beside the one that is being made, which under autocast is made in
    bfloat16 from weights that were cast.
    """
    weights, precision = role.shape.head_weights, role.precision
    each = assumed.CHUNK_FUSED * precision.compute_bytes
    if not role.fused_head:
        each = precision.compute_bytes + assumed.CHUNK_EAGER
    made = precision.weight_bytes + (2 * precision.compute_bytes if precision.casts else 0)
    return {
        "logits of a chunk": float(min(role.chunk, batch.actions)) * role.shape.vocab * each,
        "gradient of the head": float((4 + made) * weights),
    }


def _scoring(role: Role, batch: MicroBatch) -> Parts:
    """A pass without gradients. Autocast keeps casts of weights that are trained until the pass ends."""
    shape, precision = role.shape, role.precision
    each = precision.compute_bytes
    if not role.fused_head:
        each = assumed.CHUNK_SCORING_SCALED if role.scales_logits else assumed.CHUNK_SCORING
    chunk = min(role.chunk, batch.actions) * shape.vocab if role.has_head else 0
    widest = float(batch.tokens) * scoring_bytes(shape, precision)
    casts = precision.compute_bytes * shape.layer_weights if precision.casts and role.trained else 0
    after = float(batch.tokens) * last_norm_bytes(shape, precision)
    after += chunk * each
    return {"activations": max(widest, after), "weights cast to bfloat16": float(casts)}


def _clean(parts: Parts) -> Parts:
    return {name: size for name, size in parts.items() if size > 0}
