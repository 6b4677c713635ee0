"""Optimizers: AdamW."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import AdamConfig


@hookimpl
def rlhf_optimizers() -> list[Component[Any]]:
    return [
        Component(
            name="adam",
            factory="rlhf_plugin_optim.adam:Adam",
            config=AdamConfig,
            summary="AdamW, fused where torch can; no weight decay on biases and norms",
        )
    ]
