"""Gradient descent from torch, which keeps one number of state per weight with momentum and none without."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from rlhf_core.contracts import ParameterGroup

from .config import SgdConfig
from .groups import by_decay, torch_groups, trainable_parameters


class Sgd:
    """The ``sgd`` optimizer component: ``torch.optim.SGD``.

    Weight decay is added to the gradient, so the decay passes through the momentum. Without momentum the update is that
    of decoupled decay.
    """

    def __init__(self, config: SgdConfig) -> None:
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
        return torch.optim.SGD(
            torch_groups(groups),
            lr=self.config.lr,
            momentum=self.config.momentum,
            nesterov=self.config.nesterov,
            weight_decay=self.config.weight_decay,
        )
