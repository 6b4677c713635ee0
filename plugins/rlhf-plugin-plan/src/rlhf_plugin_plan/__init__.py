"""The command ``rlhf plan``: what a run will take, from its configuration alone."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl


@hookimpl
def rlhf_commands() -> list[Component[Any]]:
    return [
        Component(
            name="plan",
            factory="rlhf_plugin_plan.command:main",
            summary="Predict memory and seconds of a run on given GPUs, and say whether it fits.",
        )
    ]
