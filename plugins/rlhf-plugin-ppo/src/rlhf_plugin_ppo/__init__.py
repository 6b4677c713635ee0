"""PPO: generalized advantage estimation and the clipped policy loss."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import GaeConfig, PpoLossConfig


@hookimpl
def rlhf_advantage_estimators() -> list[Component[Any]]:
    return [
        Component(
            name="gae",
            factory="rlhf_plugin_ppo.components:GaeEstimator",
            config=GaeConfig,
            summary="generalized advantage estimation with a critic (PPO)",
            needs=frozenset({"values"}),
        )
    ]


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [
        Component(
            name="ppo",
            factory="rlhf_plugin_ppo.components:PpoLoss",
            config=PpoLossConfig,
            summary="clipped policy ratio, with separate bounds (clip-higher) and dual clip",
            provides=frozenset({"off_policy"}),
        )
    ]
