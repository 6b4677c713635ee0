"""AdamW from torch, with weight decay on matrices only."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import ParameterGroup
from rlhf_core.lazy import torch

from .groups import PEAK_LR, Decay, SplitsByDecay, can_fuse, torch_groups


class AdamConfig(Config):
    """Options of AdamW."""

    lr: float = Field(1e-6, gt=0.0, le=1.0, description=PEAK_LR)
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.95),
        description="decay per update of the averages of the gradient and of its square",
    )
    eps: float = Field(1e-8, gt=0.0, le=1.0, description="added to the root of the second moment")
    weight_decay: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="decoupled weight decay, times the learning rate, of matrices but not of biases and norms",
    )


class Adam(SplitsByDecay):
    """The ``adam`` optimizer component.

    Source: Loshchilov and Hutter 2019 (AdamW), arXiv:1711.05101, as ``torch.optim.AdamW`` has it: each update first
    multiplies the decayed weights by ``1 - lr * weight_decay``.
    """

    def __init__(self, config: AdamConfig) -> None:
        self.config = config

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


COMPONENT = Component(
    name="adam",
    factory=Adam,
    config=AdamConfig,
    summary="AdamW, fused where torch can; no weight decay on biases and norms",
)
