"""PPO: generalized advantage estimation and the clipped policy loss. One file an algorithm."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import gae, ppo


@hookimpl
def rlhf_advantage_estimators() -> list[Component[Any]]:
    return [gae.COMPONENT]


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [ppo.COMPONENT]
