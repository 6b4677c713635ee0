"""Families of image-text models, one file each, by the ``model_type`` of their config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_torch.vision.family import VisionFamily

from .gemma3 import Gemma3
from .internvl import InternVl
from .llava import Llava
from .qwen_vl import QwenVl

FAMILIES: Mapping[str, Callable[..., VisionFamily]] = {
    "gemma3": Gemma3,
    "internvl": InternVl,
    "llava": Llava,
    "qwen2_5_vl": QwenVl,
    "qwen2_vl": QwenVl,
    "qwen3_5": QwenVl,
    "qwen3_5_moe": QwenVl,
    "qwen3_vl": QwenVl,
    "qwen3_vl_moe": QwenVl,
}
"""``model_type`` -> the family, called with path, configuration, options and ``trust_remote_code``."""
