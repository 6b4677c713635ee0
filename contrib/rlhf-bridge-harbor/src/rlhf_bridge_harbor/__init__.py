"""Environment `harbor`: task folders of Harbor, in containers or in a sandbox of the host."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import HarborConfig


@hookimpl
def rlhf_environments() -> list[Component[Any]]:
    return [
        Component(
            name="harbor",
            factory="rlhf_bridge_harbor.environment:HarborBridge",
            config=HarborConfig,
            summary="task folders of Harbor: commands of the policy in a machine, and a script that verifies",
        )
    ]
