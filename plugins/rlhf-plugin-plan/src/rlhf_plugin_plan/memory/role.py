"""One role as a training backend has it, its micro-batches, and numbers that follow from its shape."""

from __future__ import annotations

from dataclasses import dataclass

from ..machine import assumptions as assumed
from ..model.adapters import AdapterCounts
from ..model.precision import Precision
from ..model.shapes import ModelShape
from .sharing import Sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Properties of a role on which its memory depends."""

    name: str
    shape: ModelShape
    """Shape of the model on one rank: ``ModelShape.part`` if ranks share every matrix."""
    precision: Precision
    """Types of parameters and matmuls."""
    trained: bool
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
    reference: bool = False
    """Whether the role keeps a reference that follows its weights."""
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
    idle_tower: bool = False
    """Whether no row has an image: a tower that would be trained gets no gradients then, and no optimizer state."""
    replays: bool = False
    """Whether tokens go to the experts that the engine chose."""
    adapter: AdapterCounts | None = None
    """The adapter that is trained beside the fixed weights of the role; None: the weights themselves are trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The largest micro-batch of an update, on one rank."""

    tokens: int
    actions: int
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


def trained_parameters(role: Role) -> int:
    """Return the number of parameters that the optimizer updates: the adapter's, or else all but a critic's unused
    output head and a frozen vision tower; a projector beside it is trained all the same."""
    if role.adapter is not None:
        return role.adapter.trained
    trained = role.shape.layer_parameters + outside_of_layers(role)
    return trained - role.shape.tower_parameters + trained_tower(role)


def trained_tower(role: Role) -> int:
    """Return the number of parameters that are trained as a whole: of a vision tower, and of a projector beside it."""
    if role.adapter is not None:
        return 0
    return role.shape.projector_parameters if role.frozen_tower else role.shape.tower_parameters


def updated_parameters(role: Role, sharing: Sharing) -> int:
    """Return the number of trained parameters that get gradients and optimizer state. ZeRO makes both for all of them,
    also for those that no pass reaches."""
    unreached = trained_tower(role) if role.idle_tower and sharing.stage == 0 else 0
    return trained_parameters(role) - unreached


def weight_bytes(role: Role) -> float:
    """Return the bytes of all weights of a role on one rank: base and adapter."""
    width, shape = role.precision.weight_bytes, role.shape
    weights = float(width * shape.parameters)
    if role.adapter is not None:
        weights += width * role.adapter.trained
        if role.adapter.linear_weight_bytes is not None:
            weights += (role.adapter.linear_weight_bytes - width) * shape.linear_weights
    return weights


def outside_of_layers(role: Role) -> int:
    """Return the number of parameters that are in no layer: embeddings, norm, head that is used, vision tower."""
    unused = role.shape.head_weights if not role.has_head and not role.shape.tied else 0
    return role.shape.parameters - role.shape.layer_parameters - unused


def trained_outside_of_layers(role: Role) -> int:
    """Return the number of trained parameters that are in no layer; of an adapter, those of embeddings and head."""
    if role.adapter is not None:
        return role.adapter.tables
    return trained_parameters(role) - role.shape.layer_parameters
