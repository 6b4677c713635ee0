"""Environment `verifiers_v0`: those written for the first API of verifiers, up to 0.3.1."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import VerifiersV0Config


@hookimpl
def rlhf_environments() -> list[Component[Any]]:
    return [
        Component(
            name="verifiers_v0",
            factory="rlhf_bridge_verifiers.rollouts:VerifiersV0Bridge",
            config=VerifiersV0Config,
            summary="an environment of verifiers 0.3.1 and before, which load_environment makes",
            extra="v0",
        ),
    ]
