"""Which part of which parameter this rank updates: where it lies in DeepSpeed's flat float32 vectors.

Everything here reads DeepSpeed's own bookkeeping, which has no public form; the version is pinned for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A run of elements of one parameter in one of this rank's vectors."""

    name: str
    vector: int
    """Index of the vector."""
    offset: int
    """Where the run begins in the vector."""
    start: int
    """Where it begins in the flattened parameter."""
    length: int
    """In elements, padding left out."""

    @property
    def stop(self) -> int:
        return self.start + self.length

    def of(self, vector: Tensor) -> Tensor:
        """Return the run in a vector, as a view."""
        return vector.detach().narrow(0, self.offset, self.length)


def master_vectors(zero: Any, stage: int) -> list[Tensor]:
    """Return this rank's float32 weights as DeepSpeed's optimizer holds them; they stay the same objects."""
    if stage == 3:
        return list(zero.fp32_partitioned_groups_flat)
    return [group["params"][0] for group in zero.optimizer.param_groups]


def fragments(
    zero: Any, stage: int, named: Mapping[str, nn.Parameter], rank: int
) -> list[Fragment]:
    """Return this rank's fragments in the order of the parameters; a parameter may have none."""
    found = []
    for name, parameter in named.items():
        one = _partitioned(zero, name, parameter, rank) if stage == 3 else _sliced(name, parameter)
        if one is not None and one.length > 0:
            found.append(one)
    return found


def publish(zero: Any, stage: int) -> None:
    """Round all ranks' float32 weights into the model."""
    if stage < 3:
        zero.update_lp_params()
        return
    # Parameters that stay whole would keep their old values, so all are taken apart before.
    zero._partition_all_parameters()
    with torch.no_grad():
        for group in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(group)
    if zero.persistent_parameters:
        zero.persistent_parameters[0].all_gather(zero.persistent_parameters)


def _sliced(name: str, parameter: nn.Parameter) -> Fragment | None:
    """Stages 1 and 2 cut the vector of a whole group into equal parts, one per rank."""
    mapping: Any = parameter._hp_mapping
    if mapping is None:
        return None
    return Fragment(
        name=name,
        vector=mapping.param_group_index,
        offset=mapping.hp_fragment_address.start,
        start=mapping.lp_fragment_address.start,
        length=mapping.lp_fragment_address.numel,
    )


def _partitioned(zero: Any, name: str, parameter: nn.Parameter, rank: int) -> Fragment:
    """Stage 3 cuts each parameter into equal parts, the last of which is padded."""
    shared: Any = parameter
    vector, offset, size = zero.grad_position[zero.get_param_id(shared)]
    start = min(rank * size, shared.ds_numel)
    return Fragment(
        name=name,
        vector=vector,
        offset=offset,
        start=start,
        length=min(size, shared.ds_numel - start),
    )
