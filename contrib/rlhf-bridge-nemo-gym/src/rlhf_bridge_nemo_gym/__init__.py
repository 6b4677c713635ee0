"""Environment `nemo_gym`: resources servers of NeMo Gym; and its agent servers as agents of the executor `endpoint`."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import NemoGymConfig


@hookimpl
def rlhf_environments() -> list[Component[Any]]:
    return [
        Component(
            name="nemo_gym",
            factory="rlhf_bridge_nemo_gym.environment:NemoGymBridge",
            config=NemoGymConfig,
            summary="a resources server of NeMo Gym, by /seed_session and /verify or by /reset and /step",
            extra="client",
        )
    ]
