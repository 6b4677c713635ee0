"""Registration of the environment `tools`, in which the policy calls tools until it answers."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import ToolsConfig


@hookimpl
def rlhf_environments() -> list[Component[Any]]:
    return [
        Component(
            name="tools",
            factory="rlhf_plugin_tools.offered:OfferedTools",
            config=ToolsConfig,
            summary="the policy answers a prompt of the data, and may call functions, MCP servers and Python first",
        )
    ]
