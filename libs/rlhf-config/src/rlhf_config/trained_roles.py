"""Options of roles that are trained: optimizer, schedule, adapter, and what the update has beside its loss."""

from __future__ import annotations

from pydantic import Field

from rlhf_core.component import Config


class TrainedRole(Config):
    optim: str = Field(description="optimizer; its options are in the section named after it")
    lr_schedule: str | None = Field(
        None, description="schedule of the learning rate after the warm-up; unset: the peak rate"
    )
    warmup_ratio: float = Field(
        0.03, ge=0.0, le=1.0, description="share of all updates with a rising learning rate"
    )
    min_lr_ratio: float = Field(
        0.1,
        ge=0.0,
        le=1.0,
        description="floor of schedules that end at one, as a share of the peak",
    )
    max_norm: float | None = Field(
        1.0, gt=0.0, description="clip the gradient's norm; none: do not"
    )
    adapter: str | None = Field(
        None,
        description="model adapter: what is trained beside a fixed base; unset: all weights are",
    )
    router_aux_loss: float | None = Field(
        None,
        ge=0.0,
        description="factor of the loss that balances the load of a mixture of experts; unset: the model's "
        "router_aux_loss_coef if its config.json has output_router_logits true, else 0",
    )


class ActorConfig(TrainedRole):
    ema: float | None = Field(
        None, gt=0.0, lt=1.0, description="decay of an averaged copy of the weights, exported too"
    )


class SeeingActor(ActorConfig):
    """Training of a model that may read images."""

    freeze_visual_encoder: bool = Field(
        False, description="do not train the part of the model that reads pixels"
    )
