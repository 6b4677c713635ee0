"""Environment `textarena`: games of TextArena."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import ENDLESS_TASKS

from .config import TextArenaConfig


@hookimpl
def rlhf_environments() -> list[Component[Any]]:
    return [
        Component(
            name="textarena",
            factory="rlhf_bridge_textarena.environment:TextArenaBridge",
            config=TextArenaConfig,
            summary="a game of TextArena, alone or against opponents that repeat given moves",
            extra="ecosystem",
            provides=frozenset({ENDLESS_TASKS}),
        )
    ]
