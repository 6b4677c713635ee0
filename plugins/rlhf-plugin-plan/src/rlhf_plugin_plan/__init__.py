"""Registration of the command ``rlhf plan``, which predicts memory and seconds of a run from its configuration."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import PLANS_MEMORY


@hookimpl
def rlhf_commands() -> list[Component[Any]]:
    """Return the ``plan`` command; its module is imported when the command runs."""
    return [
        Component(
            name="plan",
            factory="rlhf_plugin_plan.advice:COMMAND",
            summary="Predict memory and seconds of a run on given GPUs, and say whether it fits.",
            provides=frozenset({PLANS_MEMORY}),
        )
    ]
