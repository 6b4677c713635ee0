"""Vision model `vlm`: image-text models of Transformers as policies that see."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import VlmConfig


@hookimpl
def rlhf_vision_models() -> list[Component[Any]]:
    return [
        Component(
            name="vlm",
            config=VlmConfig,
            factory="rlhf_plugin_vlm.model:ImageTextModel",
            summary="reads images for models of Transformers: Qwen2-VL to Qwen3.5 (MoE too), Gemma 3, 3n and 4, "
            "InternVL, LLaVA, LLaVA-NeXT, LLaVA-OneVision, Idefics3, SmolVLM, Mistral 3, GLM-4.xV",
        )
    ]
