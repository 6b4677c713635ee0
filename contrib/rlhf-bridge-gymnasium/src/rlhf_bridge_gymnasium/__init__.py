"""Environment `gymnasium`: environments of Gymnasium with discrete actions, shown as text."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import ENDLESS_TASKS

from .config import GymnasiumConfig


@hookimpl
def rlhf_environments() -> list[Component[Any]]:
    return [
        Component(
            name="gymnasium",
            factory="rlhf_bridge_gymnasium.environment:GymnasiumBridge",
            config=GymnasiumConfig,
            summary="an environment of Gymnasium by its id, with discrete actions, shown as text",
            extra="ecosystem",
            provides=frozenset({ENDLESS_TASKS}),
        )
    ]
