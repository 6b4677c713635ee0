"""The runtime `ray`: roles and engines in actors, on one machine or on a cluster."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import RUNTIME_SEES, UNDOES_UPDATES

from .config import RayRuntimeConfig


@hookimpl
def rlhf_runtimes() -> list[Component[Any]]:
    return [
        Component(
            name="ray",
            config=RayRuntimeConfig,
            factory="rlhf_plugin_ray.runtime:RayRuntime",
            summary="runs each rank and each engine in a Ray actor of its own, on one machine or many",
            provides=frozenset({RUNTIME_SEES, UNDOES_UPDATES}),
            extra="ray",
        )
    ]
