"""Environment `reasoning_gym`: tasks that reasoning-gym generates and scores."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import ReasoningGymConfig


@hookimpl
def rlhf_environments() -> list[Component[Any]]:
    return [
        Component(
            name="reasoning_gym",
            factory="rlhf_bridge_reasoning_gym.environment:ReasoningGymBridge",
            config=ReasoningGymConfig,
            summary="questions of a generator of reasoning-gym, scored by it; one turn",
            extra="ecosystem",
        )
    ]
