"""Environment `frozen_lake`: the policy crosses Gymnasium's frozen lake, shown as text."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import FrozenLakeConfig


@hookimpl
def rlhf_environments() -> list[Component[Any]]:
    return [
        Component(
            name="frozen_lake",
            factory="rlhf_env_frozen_lake.environment:FrozenLake",
            config=FrozenLakeConfig,
            summary="cross Gymnasium's FrozenLake-v1, shown as text, without falling into a hole",
        )
    ]
