"""Options of the optimizers. docs/algorithms gives the origin of the defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlhf_core import Config

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
_PEAK_LR = "peak learning rate, which the schedule scales"


class AdamConfig(Config):
    """Options of AdamW."""

    lr: float = Field(1e-6, gt=0.0, le=1.0, description=_PEAK_LR)
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.95), description="decay per update of the gradient's average and of its square's"
    )
    eps: float = Field(1e-8, gt=0.0, le=1.0, description="added to the root of the second moment")
    weight_decay: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="decoupled decay, times the learning rate; only of matrices, not of biases and norms",
    )


class Adam8bitConfig(AdamConfig):
    """Options of AdamW with 8-bit state."""

    min_8bit_size: int = Field(
        4096, ge=0, description="parameters with fewer numbers keep their state in float32"
    )
    paged: bool = Field(
        False, description="let the driver move the state to host memory when GPU memory runs out"
    )


class SgdConfig(Config):
    """Options of gradient descent."""

    lr: float = Field(1e-3, gt=0.0, le=100.0, description=_PEAK_LR)
    momentum: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="decay per update of the sum of gradients; 0 keeps no state",
    )
    nesterov: bool = Field(False, description="look ahead by one update; needs momentum")
    weight_decay: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="factor of the weight that is added to its gradient; only of matrices, not of biases and norms",
    )

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> SgdConfig:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov is on but momentum is 0; expected momentum above 0")
        return self


class MuonConfig(Config):
    """Options of Muon for hidden matrices and of AdamW for all other parameters."""

    lr: float = Field(
        1e-6, gt=0.0, le=1.0, description=f"{_PEAK_LR}, of the hidden matrices; see adjust_lr"
    )
    momentum: float = Field(
        0.95, ge=0.0, lt=1.0, description="decay per update of the gradient's average"
    )
    nesterov: bool = Field(True, description="look ahead by one update")
    ns_steps: int = Field(
        5, ge=1, le=20, description="Newton-Schulz iterations that orthogonalize the average"
    )
    adjust_lr: Literal["match_rms_adamw", "original"] = Field(
        "match_rms_adamw",
        description="learning rate of a matrix of rows x columns. match_rms_adamw: lr * 0.2 * sqrt(max(rows, columns)),"
        " so that learning rates of AdamW fit; original: lr * sqrt(max(1, rows / columns))",
    )
    weight_decay: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="decoupled decay, times the learning rate; only of matrices, not of biases and norms",
    )
    adam_lr: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="peak learning rate of all other parameters, which AdamW updates; unset: lr, which only "
        "match_rms_adamw allows",
    )
    adam_betas: tuple[Decay, Decay] = Field(
        (0.9, 0.95), description="AdamW: decay of the gradient's average and of its square's"
    )
    adam_eps: float = Field(
        1e-8, gt=0.0, le=1.0, description="AdamW: added to the root of the second moment"
    )
    adam_names: tuple[str, ...] = Field(
        ("*embed*", "wte", "wpe", "*_head", "output_layer", "score"),
        description="patterns for parts of a parameter's dotted name; AdamW updates matching parameters of any shape",
    )

    @model_validator(mode="after")
    def _learning_rates_fit(self) -> MuonConfig:
        if self.adjust_lr == "original" and self.adam_lr is None:
            raise ValueError(
                "adjust_lr original without adam_lr: the scale of lr is then far too large for AdamW; set adam_lr"
            )
        return self
