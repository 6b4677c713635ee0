"""Seconds in which the ranks of one role, or the GPUs of one engine, exchange parts of each layer's arrays."""

from __future__ import annotations

from collections.abc import Iterator

from ..memory.engine_memory import BYTES
from ..memory.role import (
    outside_of_layers,
    trained_outside_of_layers,
    trained_parameters,
    weight_bytes,
)
from .setting import Phase, Setting
from .work import head_exchange_bytes, matrix_exchange_bytes, slice_exchange_bytes

LINKS = "links between GPUs, if nothing overlaps"
ENGINE_EXCHANGE = "exchange engine"


def role_exchange(setting: Setting, name: str, *, scored: bool) -> Iterator[Phase]:
    """Yield the phase in which the ranks of a role that share matrices or sequences exchange arrays in a step.

    The bytes are counted in forward passes: one if the role makes a pass without gradients, and two for each epoch of
    training, since the backward pass sends as much. Recomputed layers take a third.

    Args:
        scored: the role makes a pass without gradients over the step's sequences.
    """
    planned = setting.roles[name]
    role, work = planned.role, setting.workload
    group = planned.parts * planned.slices
    if group == 1:
        return
    epochs = setting.planned.run.train.inner_epochs if role.trained else 0
    passes = int(scored) + epochs * (3 if role.recompute else 2)
    width = role.precision.compute_bytes
    # All ranks that share matrices compute the same tokens: those of their whole rank group.
    rows = work.sequences * planned.parts / planned.ranks
    if planned.parts > 1:
        sent = passes * matrix_exchange_bytes(planned.shape, rows * work.length, group, width)
        # The head's backward pass computes the logits again, and exchanges nothing for their gradient.
        heads = (int(scored) + 2 * epochs) * role.has_head
        sent += heads * head_exchange_bytes(
            planned.shape, rows * work.response_tokens, group, width
        )
    else:
        sent = passes * slice_exchange_bytes(planned.shape, rows * work.length, group, width)
    yield Phase(name=f"exchange {name} layers", limit_s=sent / setting.link(group), bound=LINKS)


def layerwise_exchange(setting: Setting, name: str, beside_s: float) -> Phase:
    """Return the phase in which the ranks of a trained role collect weights and sum gradients, one layer at a time.

    A layer's weights come while the layer before is computed, and its gradients leave beside the next one's backward
    pass. So seconds count where nothing is computed beside them: for the weights outside of layers and the first
    layer's at the beginning of a micro-batch, for a layer's gradients and those outside of layers at its end, and for
    what takes longer than all passes.

    Args:
        beside_s: seconds of the step's passes.
    """
    planned = setting.roles[name]
    role, sharing = planned.role, planned.sharing
    width, rest = role.precision.weight_bytes, outside_of_layers(role)
    trained = trained_parameters(role)
    share = (sharing.ranks - 1) / sharing.ranks
    passes = setting.planned.demands.updates_per_step * planned.micro_batches
    weights = weight_bytes(role) - width * rest
    sent = share * (sharing.collections * weights + width * rest + 4.0 * trained)
    outside = trained_outside_of_layers(role)
    alone = share * (weights / role.shape.layers + width * rest)
    alone += share * 4.0 * ((trained - outside) / role.shape.layers + outside)
    link = setting.link(sharing.ranks)
    return Phase(
        name=f"exchange {name}",
        limit_s=passes * sent / link,
        measured_s=passes * alone / link + max(0.0, passes * (sent - alone) / link - beside_s),
        bound=LINKS,
    )


def engine_exchange(setting: Setting, tokens: int) -> Iterator[Phase]:
    """Yield the phase in which the GPUs of one copy of the engine's model exchange arrays for ``tokens`` tokens."""
    engine = setting.engine
    ranks = engine.tensor_parallel
    if ranks == 1:
        return
    shape = setting.roles["policy"].shape
    sent = matrix_exchange_bytes(shape, tokens, ranks, BYTES[engine.compute])
    yield Phase(name=ENGINE_EXCHANGE, limit_s=sent / setting.link(engine.gpus_of_copy), bound=LINKS)
