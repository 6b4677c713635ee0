"""Rules of the data: sets of prompts, their shares, and how a row becomes a prompt."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from ..common.sets import set_template, set_training_sets

_ALL = 1e8
"""OpenRLHF's number of samples for all of them."""


def set_data(source: SourceOptions, out: Outcome) -> None:
    """Set the sets of prompts and their shares."""
    set_training_sets(source, out, "data.prompt_dataset", _ALL)
    if source.given("data.prompt_probs"):
        out.set("data.probabilities", source.value("data.prompt_probs"), "data.prompt_probs")
        out.differs(
            "data.prompt_probs",
            "an epoch ends before a row would come twice; OpenRLHF repeats rows of the smaller sets until all are used",
        )
    if source.whole("data.max_images_per_prompt") == 0:
        out.nothing("data.image_key", "there are no images in the prompts")
    else:
        out.missing("data.image_key", "images are not supported yet")


def set_prompt(source: SourceOptions, out: Outcome) -> None:
    """Set the column of the prompt, and the template that is put around it."""
    if source.flag("data.apply_chat_template"):
        out.set("data.chat", True, "data.apply_chat_template")
    if not set_template(source, out, "data.input_key"):
        out.set("data.prompt_key", source.text("data.input_key"), "data.input_key")
