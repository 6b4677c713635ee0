"""Which optimizers may be given flattened parameters.

ZeRO lays all parameters of a group end to end in one vector and gives each rank a part of it. An optimizer that treats
every element by itself does not notice. One that looks at matrices, at the norm of a parameter or at blocks of it would
silently compute something else, so it is tried out beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from rlhf_core import PluginError, RLHFError
from rlhf_core.contracts import Optimizer, ParameterGroup

PROBE = (
    ("model.layers.0.mlp.up_proj.weight", (64, 80), 1.0),
    ("model.layers.0.mlp.down_proj.weight", (80, 64), 0.01),
    ("model.norm.weight", (64,), 1.0),
)
"""Names, shapes and scales of parameters that it is tried on. The norms differ, for optimizers that look at them, and
the matrices have more than the 4096 elements below which 8-bit optimizers keep their state in full."""
PROBE_LR = 0.01
"""Instead of the component's own rate, which is often so small that nothing would be seen."""
TOLERANCE = 1e-5
"""Rounding of values of size 3, a few times over."""
STEPS = 2


def check_elementwise(optimizer: Optimizer, device: torch.device) -> None:
    """Refuse an optimizer that does something else to flattened parameters, or keeps state that cannot be cut.

    Raises:
        PluginError: with what was seen.
    """
    name = type(optimizer).__name__
    advice = (
        "ZeRO shares flattened parameters, so it needs an optimizer that treats every element by itself. Choose "
        "another one, such as adam, or --backend.deepspeed.zero_stage 0."
    )
    groups = optimizer.parameter_groups(_parameters(device))
    flats = [nn.Parameter(_flat(group)) for group in groups]
    try:
        flat_optimizer = _step_both(optimizer, groups, flats)
    except (RuntimeError, ValueError, IndexError, AssertionError, RLHFError) as error:
        raise PluginError(
            f"{name} cannot update a flattened parameter ({error}). {advice}"
        ) from error
    pairs = zip(groups, flats, strict=True)
    apart = max(float((_flat(group) - flat).detach().abs().max()) for group, flat in pairs)
    if apart > TOLERANCE:
        raise PluginError(
            f"{name} moves flattened parameters differently, by {apart:.3g}. {advice}"
        )
    for flat in flats:
        for key, value in flat_optimizer.state.get(flat, {}).items():
            if isinstance(value, Tensor) and value.dim() and value.shape != flat.shape:
                raise PluginError(
                    f"{name} keeps {key} of shape {tuple(value.shape)} for {flat.numel()} elements. {advice}"
                )


def _step_both(
    optimizer: Optimizer, groups: Sequence[ParameterGroup], flats: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """Give parameters and flattened groups the same gradients and steps; return the optimizer of the latter."""
    flat_groups = [
        replace(group, named_parameters=((group.name, flat),))
        for group, flat in zip(groups, flats, strict=True)
    ]
    both = [optimizer.create(groups), optimizer.create(flat_groups)]
    for group in [group for one in both for group in one.param_groups]:
        group["lr"] = PROBE_LR
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        _set_gradients(groups, flats, generator)
        for one in both:
            one.step()
    return both[1]


def _parameters(device: torch.device) -> list[tuple[str, nn.Parameter]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (name, nn.Parameter((scale * torch.randn(shape, generator=generator)).to(device)))
        for name, shape, scale in PROBE
    ]


def _flat(group: ParameterGroup) -> Tensor:
    return torch.cat([parameter.detach().flatten() for _, parameter in group.named_parameters])


def _set_gradients(
    groups: Sequence[ParameterGroup], flats: Sequence[nn.Parameter], generator: torch.Generator
) -> None:
    """Give each parameter a gradient, and each flattened group the same."""
    for group, flat in zip(groups, flats, strict=True):
        for _, parameter in group.named_parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(flat.device)
        flat.grad = torch.cat([p.grad.flatten() for _, p in group.named_parameters])
