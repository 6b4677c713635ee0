"""Fragments: the parts of parameters that this rank updates, and their places in DeepSpeed's flat float32 vectors.

All functions here read private attributes of DeepSpeed, since there is no public form; so its version is pinned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_torch.cut.fragment import Fragment


def master_vectors(zero: Any, stage: int) -> list[Tensor]:
    """Return this rank's float32 weights: the vectors that DeepSpeed's optimizer updates, not copies."""
    if stage == 3:
        return list(zero.fp32_partitioned_groups_flat)
    return [group["params"][0] for group in zero.optimizer.param_groups]


def fragments(
    zero: Any, stage: int, named: Mapping[str, nn.Parameter], rank: int
) -> list[Fragment]:
    """Return this rank's fragments in the order of ``named``. A parameter of which the rank has no part is left out."""
    found = []
    for name, parameter in named.items():
        one = _partitioned(zero, name, parameter, rank) if stage == 3 else _sliced(name, parameter)
        if one is not None and one.length > 0:
            found.append(one)
    return found


def publish(zero: Any, stage: int) -> None:
    """Copy the float32 weights of all ranks into the model's parameters, rounded to their type."""
    if stage < 3:
        zero.update_lp_params()
        return
    # A parameter that stays whole would keep its old values, so every parameter is partitioned before.
    zero._partition_all_parameters()
    with torch.no_grad():
        for group in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(group)
    if zero.persistent_parameters:
        zero.persistent_parameters[0].all_gather(zero.persistent_parameters)


def _sliced(name: str, parameter: nn.Parameter) -> Fragment | None:
    """Return this rank's fragment at stages 1 and 2, which cut a parameter group's vector into equal parts."""
    sliced: Any = parameter  # DeepSpeed adds attributes to torch's parameters.
    mapping = sliced._hp_mapping
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
    """Return this rank's fragment at stage 3, which cuts each parameter into equal parts and pads the last."""
    shared: Any = parameter  # DeepSpeed adds attributes to torch's parameters.
    vector, offset, size = zero.grad_position[zero.get_param_id(shared)]
    start = min(rank * size, shared.ds_numel)
    return Fragment(
        name=name,
        vector=vector,
        offset=offset,
        start=start,
        length=min(size, shared.ds_numel - start),
    )
