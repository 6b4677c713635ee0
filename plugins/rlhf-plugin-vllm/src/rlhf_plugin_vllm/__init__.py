"""The engine ``vllm``: generation by vLLM, with weights that follow the trainer's."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import (
    ENGINE_SEES,
    EXPERT_ROUTES,
    SERVES_ADAPTERS,
    SERVES_FOUR_BITS,
)

from .config import VllmEngineConfig


@hookimpl
def rlhf_engines() -> list[Component[Any]]:
    return [
        Component(
            name="vllm",
            config=VllmEngineConfig,
            factory="rlhf_plugin_vllm.engine:VllmEngine",
            summary="generates with vLLM in processes of its own; weights follow the trainer's",
            provides=frozenset({ENGINE_SEES, EXPERT_ROUTES, SERVES_ADAPTERS, SERVES_FOUR_BITS}),
            suits="rlhf_plugin_vllm.suitability:suits",
        )
    ]
