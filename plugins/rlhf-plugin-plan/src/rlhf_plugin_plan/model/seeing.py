"""Families of image-text models that are modeled: where a config.json has the text model, and which tower is in front.

The hub's files leave out what a configuration class of Transformers fills in. So do the functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_core import ConfigError

from .plain_towers import PlainTowerShape, gemma3_tower, internvl_tower, llava_tower
from .towers import TowerShape, tower_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SeeingFamily:
    """Entries that Transformers' configuration class of a family fills in, and the kind of its tower."""

    text: str
    """``model_type`` of the text model, where ``text_config`` names none."""
    tied: bool = False
    """Whether the output head is the embedding table."""
    filled: Mapping[str, Any] = field(default_factory=dict)
    """Entries of ``text_config``."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    """Entries of ``vision_config``."""
    tower: Callable[[Mapping[str, Any], Mapping[str, Any], int], PlainTowerShape] | None = None
    """Returns the shape of the tower from both configurations and the text model's width; None: as Qwen's towers."""


SEEING: Mapping[str, SeeingFamily] = {
    "qwen2_vl": SeeingFamily(text="qwen2"),
    "qwen2_5_vl": SeeingFamily(text="qwen2"),
    "qwen3_vl": SeeingFamily(text="qwen3"),
    "qwen3_vl_moe": SeeingFamily(text="qwen3_moe"),
    "qwen3_5": SeeingFamily(text="qwen3_5_text"),
    "qwen3_5_moe": SeeingFamily(text="qwen3_5_moe_text"),
    "llava": SeeingFamily(
        text="llama",
        filled={
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "vocab_size": 32000,
        },
        seen={"num_channels": 3},
        tower=llava_tower,
    ),
    "gemma3": SeeingFamily(
        text="gemma3_text",
        tied=True,
        filled={
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 262208,
        },
        seen={"num_channels": 3},
        tower=gemma3_tower,
    ),
    "internvl": SeeingFamily(
        text="qwen2", tied=True, seen={"num_channels": 3}, tower=internvl_tower
    ),
}
"""``model_type`` of an image-text model that is modeled -> what its files leave out, and its tower."""


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the text model of an image-text model that is modeled."""
    family = SEEING[config["model_type"]]
    own = config.get("text_config") or {}
    # In Qwen's files the text model stands beside the tower, and its name is that of the whole.
    beside = config if family.tower is None else {}
    kind = own.get("model_type", family.text) if family.tower is not None else family.text
    # The text model has an entry of its own, which does not count: the output head belongs to the whole.
    tied = config.get("tie_word_embeddings", family.tied)
    return {**family.filled, **beside, **own, "model_type": kind, "tie_word_embeddings": tied}


def tower_of_config(
    config: Mapping[str, Any], number: Callable[[str], int], out: int, source: str
) -> TowerShape | PlainTowerShape:
    """Return the shape of the vision tower of an image-text model that is modeled.

    Args:
        number: returns an entry of ``vision_config`` that is a positive integer.
        out: width of the text model.
        source: name of the config.json for messages.

    Raises:
        ConfigError: an entry is missing, or features are taken from several layers.
    """
    name, vision = config["model_type"], config["vision_config"]
    family = SEEING[name]
    if family.tower is None:
        return tower_of(vision, number, family=name)
    if isinstance(config.get("vision_feature_layer"), list):
        raise ConfigError(
            f"{source}: vision_feature_layer names several layers; rlhf plan knows towers whose features are of one. "
            "The run itself may still work.",
            code="plan/several-feature-layers",
        )
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        number(key)
    for key in ("image_size", "patch_size"):
        if not vision.get(key):
            raise ConfigError(
                f"{source}: vision_config: {key} is {vision.get(key)!r}; expected a size",
                code="plan/vision-size",
            )
    filled = {**family.seen, **vision}
    return family.tower({"mm_tokens_per_image": 256, **config}, filled, out)
