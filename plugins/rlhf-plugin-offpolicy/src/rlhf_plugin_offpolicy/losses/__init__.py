"""Policy losses for data that an older or another policy sampled."""

from typing import Any

from rlhf_core import Component, hookimpl


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return []
