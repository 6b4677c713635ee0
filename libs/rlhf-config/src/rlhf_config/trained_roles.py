"""Options of roles that are trained: optimizer, schedule, adapter, and what the update has beside its loss."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rlhf_core.component import Config
from rlhf_core.media.vision import PartsTraining


class TrainedRole(Config):
    optim: str = Field(description="optimizer; its options are in the section named after it")
    lr_schedule: str | None = Field(
        None,
        description="schedule of the learning rate after the warm-up; unset: it stays at its peak",
    )
    warmup_ratio: float = Field(
        0.03,
        ge=0.0,
        le=1.0,
        description="share of all updates, from 0 to 1, in which the learning rate rises to its peak",
    )
    init_lr_ratio: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="learning rate from which the warm-up rises, as a share of the peak, from 0 to 1",
    )
    min_lr_ratio: float = Field(
        0.1,
        ge=0.0,
        le=1.0,
        description="floor of the learning rate as a share of its peak, from 0 to 1, for schedules that have a floor",
    )
    max_norm: float | None = Field(
        1.0,
        gt=0.0,
        description="largest norm of the gradient, which is scaled down to it; none: no clipping",
    )
    adapter: str | None = Field(
        None,
        description="model adapter, which is trained beside a fixed base; unset: all weights are trained",
    )
    router_aux_loss: float | None = Field(
        None,
        ge=0.0,
        description="factor of the loss that balances the load of experts; unset: the model's router_aux_loss_coef "
        "if its config.json has output_router_logits true, else 0",
    )


class ActorConfig(TrainedRole):
    ema: float | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description="decay per update of an averaged copy of the weights, which is exported too; unset: no copy",
    )


class ReferenceSync(Config):
    """A reference that follows the policy, as in TR-DPO (arXiv:2404.09656) and, reset, in ProRL (arXiv:2505.24864)."""

    sync_every: int | None = Field(
        None,
        gt=0,
        description="number of steps between two moves of the reference to the policy; unset: it stays the model at "
        "the start",
    )
    sync_alpha: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="share of the way to the policy that the reference moves: alpha * policy + (1 - alpha) * "
        "reference, in float32; 1: it becomes the policy",
    )


class SeeingActor(ActorConfig):
    """Training of a model that may read images."""

    freeze_visual_encoder: bool = Field(
        False,
        description="keep the visual encoder, the part that reads pixels, as it is; false: it is trained",
    )
    freeze_projector: bool | None = Field(
        None,
        description="keep the projector, which turns the encoder's output into features, as it is; unset: as the "
        "encoder, if the projector lies inside it, else it is trained",
    )
    freeze_language_model: bool = Field(
        False,
        description="keep the text model, its embeddings and its output head as they are; false: they are trained",
    )
    vision_lr_ratio: float = Field(
        1.0,
        gt=0.0,
        description="learning rate of the visual encoder without its projector, as a multiple of the optimizer's",
    )
    projector_lr_ratio: float = Field(
        1.0, gt=0.0, description="learning rate of the projector, as a multiple of the optimizer's"
    )

    @model_validator(mode="after")
    def _trains_a_part(self) -> Self:
        if self.freeze_visual_encoder and self.freeze_projector and self.freeze_language_model:
            raise ValueError(
                "freeze_visual_encoder, freeze_projector and freeze_language_model are all true, which leaves nothing "
                "to train: expected one of them false"
            )
        return self

    def parts(self) -> PartsTraining:
        """Return the parts that are trained, and their rates."""
        return PartsTraining(
            freeze_tower=self.freeze_visual_encoder,
            freeze_projector=self.freeze_projector,
            freeze_text=self.freeze_language_model,
            tower_rate=self.vision_lr_ratio,
            projector_rate=self.projector_lr_ratio,
        )


OPTIONS_OF_PARTS = tuple(
    f"actor.{name}" for name in SeeingActor.model_fields if name not in ActorConfig.model_fields
)
"""Options on the parts of a model that reads images. A checkpoint's state depends on them: which parameters it has
optimizer state of, and in which groups."""
