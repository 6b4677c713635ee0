"""Which parameters an optimizer has to see whole.

ZeRO lays all parameters of a group end to end in one vector and gives each rank a part of it. An optimizer that treats
every element by itself does not notice. One that looks at matrices, at the norm of a parameter or at blocks of it would
silently compute something else, so it is tried out beforehand, a parameter group at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core import PluginError, RLHFError
from rlhf_core.contracts import Optimizer, ParameterGroup

from .whole_updates import Kept

PROBE = (
    ("model.embed_tokens.weight", (96, 64), 1.0),
    ("model.layers.0.mlp.up_proj.weight", (64, 80), 1.0),
    ("model.layers.0.mlp.down_proj.weight", (80, 64), 0.01),
    ("model.layers.0.norm.weight", (64,), 0.01),
    ("model.norm.weight", (64,), 1.0),
    ("lm_head.weight", (96, 64), 0.01),
)
"""Names, shapes and scales of parameters that it is tried on, two of each kind. Their norms differ, for optimizers that
look at them, and matrices have more than the 4096 elements below which 8-bit optimizers keep their state in full."""
PROBE_LR = 0.01
"""Instead of the component's own rate, which is often so small that nothing would be seen."""
TOLERANCE = 1e-5
"""Rounding of values of size 3, a few times over."""
STEPS = 2
NOT_FOR_ZERO = "Choose another optimizer, such as adam, or --backend.deepspeed.zero_stage 0."


def whole_parameters(
    optimizer: Optimizer, groups: Sequence[ParameterGroup], device: torch.device
) -> list[nn.Parameter]:
    """Return the parameters of ``groups`` that the optimizer must not be given flattened.

    Groups are known by their names. If any of the groups that it makes of a few small parameters has to be whole, so
    has any group of another name.

    Raises:
        PluginError: the optimizer keeps something for whole parameters that ranks cannot share.
    """
    tried = optimizer.parameter_groups(_parameters(device))
    flat = {group.name for group in tried if _may_be_flat(optimizer, group)}
    if flat >= {group.name for group in tried}:
        return []
    _check_can_be_cut(optimizer, [group for group in tried if group.name not in flat])
    return [p for group in groups if group.name not in flat for _, p in group.named_parameters]


def _may_be_flat(optimizer: Optimizer, group: ParameterGroup) -> bool:
    """Whether the optimizer does the same to a group that is flattened and cut, and keeps only what is cut with it."""
    vector = _flat(group)
    parts = [nn.Parameter(part) for part in vector.tensor_split([vector.numel() * 2 // 5])]
    named = tuple((f"{group.name}.{number}", part) for number, part in enumerate(parts))
    cut = replace(group, named_parameters=named)
    try:
        made = _created(optimizer, [cut])
        _step(made, [cut])
    except (RuntimeError, ValueError, IndexError, AssertionError, RLHFError):
        return False
    for part in parts:
        for value in made.state.get(part, {}).values():
            if isinstance(value, Tensor) and value.dim() and value.shape != part.shape:
                return False
    whole = _copy_of(group)
    _step(_created(optimizer, [whole]), [whole])
    return float((_flat(whole) - _flat(cut)).abs().max()) <= TOLERANCE


def _check_can_be_cut(optimizer: Optimizer, groups: Sequence[ParameterGroup]) -> None:
    made = _created(optimizer, groups)
    before = [_options(group) for group in made.param_groups]
    _step(made, groups)
    name = type(optimizer).__name__
    if [_options(group) for group in made.param_groups] != before:
        raise PluginError(
            f"{name} needs whole parameters, and counts in its parameter groups instead of its state, which is "
            f"not for one parameter at a time. {NOT_FOR_ZERO}"
        )
    for _, parameter in (pair for group in groups for pair in group.named_parameters):
        try:
            Kept.of(made.state.get(parameter, {}), parameter.shape)
        except PluginError as error:
            raise PluginError(
                f"{name} needs whole parameters, and {error}. {NOT_FOR_ZERO}"
            ) from error


def _created(optimizer: Optimizer, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
    made = optimizer.create(groups)
    for group in made.param_groups:
        group["lr"] = PROBE_LR
    return made


def _step(made: torch.optim.Optimizer, groups: Sequence[ParameterGroup]) -> None:
    """Do a few updates, with the same gradients for a group whether it is flattened or not."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        for parameters in ([p for _, p in group.named_parameters] for group in groups):
            sizes = [parameter.numel() for parameter in parameters]
            parts = torch.split(torch.randn(sum(sizes), generator=generator), sizes)
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = part.view(parameter.shape).to(parameter.device)
        made.step()


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _parameters(device: torch.device) -> list[tuple[str, nn.Parameter]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (name, nn.Parameter((scale * torch.randn(shape, generator=generator)).to(device)))
        for name, shape, scale in PROBE
    ]


def _copy_of(group: ParameterGroup) -> ParameterGroup:
    copies = tuple((name, nn.Parameter(p.detach().clone())) for name, p in group.named_parameters)
    return replace(group, named_parameters=copies)


def _flat(group: ParameterGroup) -> Tensor:
    return torch.cat([parameter.detach().flatten() for _, parameter in group.named_parameters])
