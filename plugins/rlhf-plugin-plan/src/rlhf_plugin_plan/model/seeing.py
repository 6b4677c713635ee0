"""Families of image-text models whose text model has closed forms: where a config.json has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

QWEN: Mapping[str, str] = {
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""``model_type`` of a family whose tower has closed forms, too -> that of its text model."""
COUNTED_TOWERS = ("llava", "gemma3", "internvl")
"""Families whose tower is counted in Transformers' own model."""


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the text model of one of ``QWEN``, which may stand beside the tower.

    The text model has a ``tie_word_embeddings`` of its own, which does not count: the output head is the whole's.
    """
    own = config.get("text_config") or {}
    tied = config.get("tie_word_embeddings", False)
    kind = QWEN[config["model_type"]]
    return {**config, **own, "model_type": kind, "tie_word_embeddings": tied}
