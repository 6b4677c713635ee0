"""Families of image-text models, one file each, by the ``model_type`` of their config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_torch.vision.family import VisionFamily

from .gemma3 import Gemma3
from .gemma3n import Gemma3n
from .gemma4 import Gemma4
from .glm4v import Glm4v
from .idefics3 import Idefics3
from .internvl import InternVl
from .llava import Llava
from .llava_next import LlavaNext
from .llava_onevision import LlavaOnevision
from .mistral3 import Mistral3
from .qwen_vl import QwenVl

FAMILIES: Mapping[str, Callable[..., VisionFamily]] = {
    "gemma3": Gemma3,
    "gemma3n": Gemma3n,
    "gemma4": Gemma4,
    "glm46v": Glm4v,
    "glm4v": Glm4v,
    "glm4v_moe": Glm4v,
    "idefics3": Idefics3,
    "internvl": InternVl,
    "llava": Llava,
    "llava_next": LlavaNext,
    "llava_onevision": LlavaOnevision,
    "mistral3": Mistral3,
    "qwen2_5_vl": QwenVl,
    "qwen2_vl": QwenVl,
    "qwen3_5": QwenVl,
    "qwen3_5_moe": QwenVl,
    "qwen3_vl": QwenVl,
    "qwen3_vl_moe": QwenVl,
    "smolvlm": Idefics3,
}
"""``model_type`` -> the family, called with path, configuration, options and ``trust_remote_code``."""
