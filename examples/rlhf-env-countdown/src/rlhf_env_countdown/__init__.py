"""Environment `countdown`: the policy reaches a target with given numbers and the four operations."""

from __future__ import annotations

from rlhf_core import Component, hookimpl

from .environment import Countdown, CountdownConfig


@hookimpl
def rlhf_environments() -> list[Component[Countdown]]:
    return [
        Component(
            name="countdown",
            factory=Countdown,
            config=CountdownConfig,
            summary="reach a target with given numbers and the four operations",
        )
    ]
