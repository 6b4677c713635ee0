"""Gradient descent from torch, which keeps one number of state per weight with momentum and none without."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator

from rlhf_core import Component, Config
from rlhf_core.contracts import ParameterGroup
from rlhf_core.lazy import torch

from .groups import PEAK_LR, SplitsByDecay, torch_groups


class SgdConfig(Config):
    """Options of gradient descent."""

    lr: float = Field(1e-3, gt=0.0, le=100.0, description=PEAK_LR)
    momentum: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="decay per update of the sum of gradients; 0: no momentum and no optimizer state",
    )
    nesterov: bool = Field(
        False, description="use Nesterov momentum, which looks ahead by one update; needs momentum"
    )
    weight_decay: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="factor with which a weight is added to its gradient, of matrices but not of biases and norms",
    )

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> SgdConfig:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov is on but momentum is 0; expected momentum above 0")
        return self


class Sgd(SplitsByDecay):
    """The ``sgd`` optimizer component: ``torch.optim.SGD``.

    Weight decay is added to the gradient, so the decay passes through the momentum. Without momentum the update is that
    of decoupled decay.
    """

    def __init__(self, config: SgdConfig) -> None:
        self.config = config

    def create(self, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
        """Return the optimizer of the parameter groups; options of a group override those of the component."""
        return torch.optim.SGD(
            torch_groups(groups),
            lr=self.config.lr,
            momentum=self.config.momentum,
            nesterov=self.config.nesterov,
            weight_decay=self.config.weight_decay,
        )


COMPONENT = Component(
    name="sgd",
    factory=Sgd,
    config=SgdConfig,
    summary="gradient descent; without momentum it keeps no optimizer state",
)
