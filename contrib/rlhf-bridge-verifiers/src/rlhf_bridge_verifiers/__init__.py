"""Environments `verifiers`, of verifiers 0.4, and `verifiers_v0`, of its first API, which ended with 0.3.1."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import VerifiersConfig, VerifiersV0Config

# verifiers looks for a harness among the exports of the package that it names.
__all__ = ["ChatHarness", "rlhf_environments"]


def __getattr__(name: str) -> Any:
    """Return the harness, imported when verifiers asks for it: the run has no verifiers."""
    if name == "ChatHarness":
        from .chat_harness import ChatHarness

        return ChatHarness
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@hookimpl
def rlhf_environments() -> list[Component[Any]]:
    return [
        Component(
            name="verifiers",
            factory="rlhf_bridge_verifiers.tasksets:VerifiersBridge",
            config=VerifiersConfig,
            summary="a taskset of verifiers 0.4, played by a harness, with its rewards by name",
            extra="v1",
        ),
        Component(
            name="verifiers_v0",
            factory="rlhf_bridge_verifiers.rollouts:VerifiersV0Bridge",
            config=VerifiersV0Config,
            summary="an environment of verifiers 0.3.1 and before, which load_environment makes",
            extra="v0",
        ),
    ]
