"""Rules of rows: which files, images, and variables of the chat template."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from ..common.sets import set_files_of_rows, set_template
from .algorithm import ACTOR

_ROLLOUT = "actor_rollout_ref.rollout"
_TURNS = f"{_ROLLOUT}.multi_turn"


def set_data(source: SourceOptions, out: Outcome) -> None:
    """Set files, images and variables of the template; prompts of verl's rows are messages, which are rendered."""
    set_files_of_rows(source, out)
    images, frozen = "data.image_key", f"{ACTOR}.freeze_vision_tower"
    if source.given(images):
        out.set(
            "model.vision",
            "vlm",
            images,
            comment="only for a model that sees; leave it out for others",
        )
        out.set("data.image_key", source.text(images), images)
        out.copy("actor.freeze_visual_encoder", frozen)
    else:
        out.nothing(images, "--model.vision vlm reads the column images")
        out.nothing(frozen, "there are no images")
    set_template(source, out)


def set_tools(source: SourceOptions, out: Outcome) -> None:
    """Note tools and turns, which have to be written as an environment."""
    names = (
        "enable",
        "max_assistant_turns",
        "max_user_turns",
        "tool_config_path",
        "function_tool_path",
    )
    keys = [f"{_TURNS}.{name}" for name in (*names, "interaction_config_path")]
    has_tools = source.flag(keys[0]) or any(source.text(key) for key in keys[3:])
    for key in keys:
        if not has_tools:
            out.nothing(key, "answers have one turn")
        elif source.value(key) in (None, False):
            out.nothing(key, "unset")
        else:
            out.missing(
                key,
                "tools and turns are an environment here (docs/tools.md): write one, and set env.use and "
                "rollout.executor = multi_turn",
            )
    if has_tools:
        out.warnings.append(
            "verl's tools and interactions are not part of this configuration, which answers each prompt in one turn: "
            "write them as an environment (docs/tools.md)"
        )


def set_evaluation_of_answers(source: SourceOptions, out: Outcome) -> None:
    """Set how held-out prompts are answered: greedily unless verl samples."""
    samples, temperature, n = (
        f"{_ROLLOUT}.val_kwargs.{name}" for name in ("do_sample", "temperature", "n")
    )
    heat = source.number(temperature)
    out.set("eval.temperatures", [heat], temperature)
    out.nothing(samples, "the temperature says it, in verl's agent loop too")
    if heat or source.whole(n) == 1:
        out.copy("eval.n_samples", n)
    else:
        out.differs(n, "one answer: at temperature 0, which verl's default is, all are the same")
    for name in ("top_p", "top_k"):
        key, training = f"{_ROLLOUT}.val_kwargs.{name}", f"{_ROLLOUT}.{name}"
        if heat and source.value(key) != source.value(training):
            out.set(f"eval.{name}", max(source.number(key), 0), key)
        else:
            out.nothing(key, f"the same as rollout.{name}, or answers are greedy")
