"""AdamW from torch, with weight decay on matrices only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from rlhf_core import ConfigError
from rlhf_core.contracts import ParameterGroup

from .config import AdamConfig

_FUSED_DEVICES = frozenset({"cpu", "cuda"})


class Adam:
    """The ``adam`` optimizer component.

    Source: Loshchilov and Hutter 2019 (AdamW), arXiv:1711.05101, as ``torch.optim.AdamW`` has it: each update first
    multiplies the decayed weights by ``1 - lr * weight_decay``.
    """

    def __init__(self, config: AdamConfig) -> None:
        self.config = config

    def parameter_groups(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]]
    ) -> list[ParameterGroup]:
        """Split the trainable parameters by their number of axes.

        Two or more axes (projections, embeddings, output heads, adapters) are in ``decay``; fewer (biases, gains of
        norms, single scalars) are in ``no_decay``, since pulling a gain towards 0 switches its channel off. Going
        by shape needs no list of names, which every new architecture would outdate. A parameter that appears under
        two names (tied embeddings) is taken once, under the first. A group without parameters is left out.

        Raises:
            ConfigError: no parameter is trainable.
        """
        trainable: dict[int, tuple[str, nn.Parameter]] = {}
        for name, parameter in named_parameters:
            if parameter.requires_grad:
                trainable.setdefault(id(parameter), (name, parameter))
        if not trainable:
            raise ConfigError(
                "no parameter is trainable, so there is nothing to optimize; "
                "choose a model adapter that leaves some parameters trainable"
            )
        decay = tuple(named for named in trainable.values() if named[1].dim() >= 2)
        no_decay = tuple(named for named in trainable.values() if named[1].dim() < 2)
        groups = [
            ParameterGroup(
                name="decay",
                named_parameters=decay,
                options={"weight_decay": self.config.weight_decay},
            ),
            ParameterGroup(
                name="no_decay", named_parameters=no_decay, options={"weight_decay": 0.0}
            ),
        ]
        return [group for group in groups if group.named_parameters]

    def create(self, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
        """Return the optimizer over the groups; each may override ``lr`` and the rest in its options."""
        # Any: torch types its parameter groups as dictionaries of anything.
        torch_groups: list[dict[str, Any]] = [
            {"name": group.name, "params": [p for _, p in group.named_parameters], **group.options}
            for group in groups
        ]
        return torch.optim.AdamW(
            torch_groups,
            lr=self.config.lr,
            betas=self.config.betas,
            eps=self.config.eps,
            weight_decay=self.config.weight_decay,
            fused=_can_fuse(groups),
        )


def _can_fuse(groups: Sequence[ParameterGroup]) -> bool:
    """One kernel for all parameters of a device; torch has it for floating point on these devices."""
    return all(
        parameter.device.type in _FUSED_DEVICES and parameter.is_floating_point()
        for group in groups
        for _, parameter in group.named_parameters
    )
