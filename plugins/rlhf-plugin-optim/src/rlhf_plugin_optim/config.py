"""Options of ``adam``. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlhf_core import Config

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class AdamConfig(Config):
    lr: float = Field(
        1e-6, gt=0.0, le=1.0, description="peak learning rate, which the schedule scales"
    )
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.95), description="decay per update of the gradient's average and of its square's"
    )
    eps: float = Field(1e-8, gt=0.0, le=1.0, description="added to the root of the second moment")
    weight_decay: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="decoupled decay, times the learning rate; only of parameters with two or more axes",
    )
