"""Families of image-text models, one file each, by the ``model_type`` of their config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_torch.vision.family import VisionFamily

from .qwen2_5_vl import Qwen25Vl

FAMILIES: Mapping[str, Callable[..., VisionFamily]] = {"qwen2_5_vl": Qwen25Vl}
"""``model_type`` -> the family, called with path, configuration, options and ``trust_remote_code``."""
