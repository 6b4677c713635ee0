"""Rules of the data: sets of prompts, their shares, and how a row becomes a prompt."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from ..common.sets import set_template, set_training_sets

_ALL = 1e8
"""OpenRLHF's number of samples for all of them."""


def set_data(source: SourceOptions, out: Outcome) -> None:
    """Set the sets of prompts and their shares."""
    set_training_sets(source, out, "data.prompt_dataset", "data.prompt_probs", _ALL)
    _set_images(source, out)


def set_prompt(source: SourceOptions, out: Outcome) -> None:
    """Set the column of the prompt, and the template that is put around it."""
    if source.flag("data.apply_chat_template"):
        out.set("data.chat", True, "data.apply_chat_template")
    if not set_template(source, out, "data.input_key"):
        out.set("data.prompt_key", source.text("data.input_key"), "data.input_key")


def _set_images(source: SourceOptions, out: Outcome) -> None:
    """Set the reading of images, if prompts may have some: OpenRLHF's number of them is its switch."""
    most = source.whole("data.max_images_per_prompt")
    if most == 0:
        out.nothing(
            ("data.image_key", "data.max_images_per_prompt", "actor.freeze_visual_encoder"),
            "there are no images in the prompts",
        )
        return
    out.set("model.vision", "vlm", "data.max_images_per_prompt")
    out.set("data.max_images", most, "data.max_images_per_prompt")
    out.differs(
        "data.max_images_per_prompt",
        "images of later turns count too, and a row with more of them is named before the run begins",
    )
    out.set("data.image_key", source.text("data.image_key"), "data.image_key")
    if source.flag("actor.freeze_visual_encoder"):
        out.set("actor.freeze_visual_encoder", True, "actor.freeze_visual_encoder")
