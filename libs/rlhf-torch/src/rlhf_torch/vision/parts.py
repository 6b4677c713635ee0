"""Parts of an image-text model, of which each may be trained or not, and at a rate of its own."""

from __future__ import annotations

from transformers import PreTrainedModel

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import PartsTraining

from .family import VisionFamily

TOWER = "visual encoder"
"""Name, in messages, of the part that reads pixels."""
PROJECTOR = "projector"
"""Name, in messages, of the part that makes features of what the tower reads."""
TEXT = "language model"
"""Name, in messages, of all else."""


def parts_of(family: VisionFamily, model: PreTrainedModel) -> dict[str, str]:
    """Return the part of each parameter by its name, an adapter's inside of the model too."""
    projector = {id(parameter) for parameter in family.projector(model)}
    tower = {id(parameter) for parameter in family.tower(model).parameters()}
    return {
        name: PROJECTOR if id(parameter) in projector else TOWER if id(parameter) in tower else TEXT
        for name, parameter in model.named_parameters()
    }


def train_parts(
    role: str, model: PreTrainedModel, family: VisionFamily, wanted: PartsTraining
) -> dict[str, float]:
    """Set ``requires_grad`` off in the parts that are not trained, and return the factors of the learning rates of what
    is, by name, of those whose factor is not 1.

    Args:
        role: name of the role, for messages.
        model: the model, under its adapter if there is one; what the adapter does not train stays so.

    Raises:
        ConfigError: nothing is left to train, or a factor is for a part of which nothing is trained.
        PluginError: the family does not say what its projector is, and an option needs it.
    """
    if wanted in (PartsTraining(), PartsTraining(freeze_tower=True)):
        if wanted.freeze_tower:
            family.tower(model).requires_grad_(False)
        return {}
    if not hasattr(family, "projector"):
        raise PluginError(
            f"{type(family).__name__} has no method projector (rlhf_torch.vision.family), so that of the options on "
            "parts of the model only --actor.freeze_visual_encoder can be obeyed",
            code="plugin/no-torch-part",
        )
    parts = parts_of(family, model)
    inside = {id(p) for p in family.tower(model).parameters()}
    holds_projector = any(id(parameter) in inside for parameter in family.projector(model))
    follows = wanted.freeze_tower and holds_projector
    frozen = {
        TOWER: wanted.freeze_tower,
        PROJECTOR: follows if wanted.freeze_projector is None else wanted.freeze_projector,
        TEXT: wanted.freeze_text,
    }
    trained: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        if frozen[parts[name]]:
            parameter.requires_grad_(False)
        elif parameter.requires_grad:
            trained[name] = parts[name]
    _require_trained(role, wanted, frozen, set(trained.values()))
    rates = {TOWER: wanted.tower_rate, PROJECTOR: wanted.projector_rate, TEXT: 1.0}
    return {name: rates[part] for name, part in trained.items() if rates[part] != 1.0}


def _require_trained(
    role: str, wanted: PartsTraining, frozen: dict[str, bool], trained: set[str]
) -> None:
    way_out = ""
    if frozen[PROJECTOR] and wanted.freeze_projector is None:
        way_out = (
            " The projector lies inside of this model's visual encoder and is frozen with it; "
            "--actor.freeze_projector false trains it."
        )
    if not trained:
        names = " and ".join(part for part, it in frozen.items() if it)
        raise ConfigError(
            f"the {role} has no trainable parameter: {names} are frozen (--actor.freeze_visual_encoder, "
            f"freeze_projector, freeze_language_model), and the adapter, if there is one, trains nothing else. Leave "
            f"one of them out.{way_out}",
            code="training/nothing-trainable",
        )
    for option, part, rate, is_meant in (
        ("vision_lr_ratio", TOWER, wanted.tower_rate, wanted.freeze_tower),
        ("projector_lr_ratio", PROJECTOR, wanted.projector_rate, wanted.freeze_projector),
    ):
        if rate != 1.0 and part not in trained and not is_meant:
            raise ConfigError(
                f"--actor.{option} is {rate}, but of the {part} of the {role} nothing is trained. Leave it out."
                f"{way_out}",
                code="config/frozen-part",
            )
