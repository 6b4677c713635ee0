"""Probe of an optimizer: which parameter groups it has to see as whole parameters.

Ranks that share the state of training each have a part of a parameter group's elements, in flat vectors. The result of
an optimizer that treats every element by itself stays the same. An optimizer that uses matrices, norms of
parameters or blocks of elements would silently compute something else. So each optimizer is tried on small parameters
at the start, one parameter group at a time, both flattened and whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core import PluginError, RLHFError
from rlhf_core.contracts import Optimizer, ParameterGroup

from ..training.named_optimizer import class_of
from .whole_updates import Kept

PROBE = (
    ("model.embed_tokens.weight", (96, 64), 1.0),
    ("model.layers.0.mlp.up_proj.weight", (64, 80), 1.0),
    ("model.layers.0.mlp.down_proj.weight", (80, 64), 0.01),
    ("model.layers.0.norm.weight", (64,), 0.01),
    ("model.norm.weight", (64,), 1.0),
    ("lm_head.weight", (96, 64), 0.01),
)
"""Names, shapes and scales of the probe's parameters, two of each kind. The norms differ, since some optimizers use
norms. The matrices have more than 4096 elements, because 8-bit optimizers keep full state below that size."""
PROBE_LR = 0.01
"""Learning rate of the probe. The component's own rate is often too small for a visible difference."""
TOLERANCE = 1e-5
"""Largest difference that counts as rounding: a few float32 roundings of values of size 3."""
STEPS = 2
"""Number of updates of the probe. The second update also uses state of the first."""


def whole_parameters(
    optimizer: Optimizer, groups: Sequence[ParameterGroup], device: torch.device, way_out: str
) -> list[nn.Parameter]:
    """Return the parameters of ``groups`` that the optimizer has to see whole.

    Parameter groups of the probe and of the model are matched by name. Once any of the probe's has to be whole, one of
    ``groups`` whose name the probe lacks has to be whole too.

    Args:
        way_out: what to do about an optimizer that is refused, for the error.

    Raises:
        PluginError: the optimizer has to see whole parameters and keeps state that ranks cannot share.
    """
    tried = optimizer.parameter_groups(_parameters(device))
    flat = {group.name for group in tried if _may_be_flat(optimizer, group)}
    if flat >= {group.name for group in tried}:
        return []
    _check_can_be_cut(optimizer, [group for group in tried if group.name not in flat], way_out)
    return [p for group in groups if group.name not in flat for _, p in group.named_parameters]


def _may_be_flat(optimizer: Optimizer, group: ParameterGroup) -> bool:
    """Return whether a parameter group, flattened and cut, gets the same update, and all its state a part's shape."""
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


def _check_can_be_cut(optimizer: Optimizer, groups: Sequence[ParameterGroup], way_out: str) -> None:
    made = _created(optimizer, groups)
    before = [_options(group) for group in made.param_groups]
    _step(made, groups)
    name = class_of(optimizer)
    if [_options(group) for group in made.param_groups] != before:
        raise PluginError(
            f"{name} needs whole parameters, but counts in its parameter groups instead of its state; ranks have whole "
            f"parameters updated in copies of their group, where such a count is lost. {way_out}",
            code="optimizer/counts-in-groups",
        )
    for _, parameter in (pair for group in groups for pair in group.named_parameters):
        try:
            Kept.of(made.state.get(parameter, {}), parameter.shape)
        except PluginError as error:
            raise PluginError(
                f"{name} needs whole parameters, and {error}. {way_out}",
                code="optimizer/needs-whole-parameters",
            ) from error


def _created(optimizer: Optimizer, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
    made = optimizer.create(groups)
    for group in made.param_groups:
        group["lr"] = PROBE_LR
    return made


def _step(made: torch.optim.Optimizer, groups: Sequence[ParameterGroup]) -> None:
    """Do ``STEPS`` updates. The gradient of a parameter group is the same whether it is flattened or not."""
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
