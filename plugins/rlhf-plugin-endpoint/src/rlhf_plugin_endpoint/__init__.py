"""The rollout executor ``endpoint``: agents of any client library, on the tokens that they sampled."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import EndpointConfig


@hookimpl
def rlhf_rollout_executors() -> list[Component[Any]]:
    return [
        Component(
            name="endpoint",
            factory="rlhf_plugin_endpoint.executor:Endpoint",
            config=EndpointConfig,
            summary="an agent asks the policy over HTTP, as it would ask OpenAI or Anthropic; a base URL per episode",
            conflicts=frozenset({"environment"}),
            provides=frozenset({"several_turns", "rewards_episodes", "executor_passes_images"}),
        )
    ]
