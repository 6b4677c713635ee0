"""AdamW from torch, with weight decay on matrices only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from rlhf_core.contracts import ParameterGroup

from .config import AdamConfig
from .groups import by_decay, torch_groups, trainable_parameters

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
        """Split the trainable parameters into ``decay``, the matrices, and ``no_decay``.

        Raises:
            ConfigError: no parameter is trainable.
        """
        return by_decay(
            trainable_parameters(named_parameters), weight_decay=self.config.weight_decay
        )

    def create(self, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
        """Return the optimizer of the parameter groups; options of a group override those of the component."""
        return torch.optim.AdamW(
            torch_groups(groups),
            lr=self.config.lr,
            betas=self.config.betas,
            eps=self.config.eps,
            weight_decay=self.config.weight_decay,
            fused=can_fuse(groups),
        )


def can_fuse(groups: Sequence[ParameterGroup]) -> bool:
    """Return whether torch can update all parameters of a device in one kernel: floating point, on a CPU or CUDA."""
    return all(
        parameter.device.type in _FUSED_DEVICES and parameter.is_floating_point()
        for group in groups
        for _, parameter in group.named_parameters
    )
