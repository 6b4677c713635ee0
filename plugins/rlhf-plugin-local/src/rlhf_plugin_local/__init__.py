"""The embedded runtime: engine, training backend and placement in one process."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import (
    BACKEND_SEES,
    ENGINE_READS_FRAMES,
    ENGINE_SEES,
    EXPERT_ROUTES,
    IN_PROCESS,
    KEEPS_REFERENCE,
    LENDS_BASES,
    REPLAYS_ROUTES,
    RUNTIME_SEES,
    SERVES_ADAPTERS,
    SERVES_FOUR_BITS,
    SHARES_WEIGHTS,
    UNDOES_UPDATES,
)

from .config import LocalRuntimeConfig, TorchBackendConfig
from .engine.config import EmbeddedEngineConfig


@hookimpl
def rlhf_engines() -> list[Component[Any]]:
    return [
        Component(
            name="embedded",
            config=EmbeddedEngineConfig,
            factory="rlhf_plugin_local.engine.embedded:EmbeddedEngine",
            summary="generates in this process, on the trainer's own weights",
            provides=frozenset(
                {
                    SERVES_ADAPTERS,
                    SERVES_FOUR_BITS,
                    SHARES_WEIGHTS,
                    ENGINE_SEES,
                    ENGINE_READS_FRAMES,
                    EXPERT_ROUTES,
                }
            ),
            suits="rlhf_plugin_local.engine.suitability:suits",
        )
    ]


@hookimpl
def rlhf_train_backends() -> list[Component[Any]]:
    return [
        Component(
            name="torch",
            config=TorchBackendConfig,
            factory="rlhf_plugin_local.torch_backend:TorchBackend",
            summary="trains any Transformers causal LM on packed sequences, on one CPU or GPU",
            provides=frozenset(
                {BACKEND_SEES, LENDS_BASES, KEEPS_REFERENCE, REPLAYS_ROUTES, UNDOES_UPDATES}
            ),
        )
    ]


@hookimpl
def rlhf_runtimes() -> list[Component[Any]]:
    return [
        Component(
            name="local",
            config=LocalRuntimeConfig,
            factory="rlhf_plugin_local.runtime:LocalRuntime",
            summary="runs everything in one process, by direct calls",
            provides=frozenset({IN_PROCESS, RUNTIME_SEES, UNDOES_UPDATES}),
        )
    ]
