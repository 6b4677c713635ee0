"""Environment `openenv`: servers of OpenEnv, running ones and such that are started with the run."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import OpenEnvConfig


@hookimpl
def rlhf_environments() -> list[Component[Any]]:
    return [
        Component(
            name="openenv",
            factory="rlhf_bridge_openenv.environment:OpenEnvBridge",
            config=OpenEnvConfig,
            summary="an environment of OpenEnv behind its server: a running one, or one that is started with the run",
            extra="client",
        )
    ]


@hookimpl
def rlhf_run_end() -> None:
    """End the servers that this process started."""
    from .servers import stop_servers

    stop_servers()
