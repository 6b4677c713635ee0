"""REINFORCE, REINFORCE++-baseline and RLOO advantage estimators."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import ReinforceBaselineConfig, ReinforceConfig, RlooConfig

_COMPARES_A_GROUP = frozenset({"group>=2"})


@hookimpl
def rlhf_advantage_estimators() -> list[Component[Any]]:
    return [
        Component(
            name="reinforce",
            factory="rlhf_plugin_reinforce.components:Reinforce",
            config=ReinforceConfig,
            summary="discounted return, whitened over the batch (REINFORCE++)",
        ),
        Component(
            name="reinforce_baseline",
            factory="rlhf_plugin_reinforce.components:ReinforceBaseline",
            config=ReinforceBaselineConfig,
            summary="reward minus its group's mean, whitened over the batch (REINFORCE++-baseline)",
            needs=_COMPARES_A_GROUP,
        ),
        Component(
            name="rloo",
            factory="rlhf_plugin_reinforce.components:Rloo",
            config=RlooConfig,
            summary="reward minus the mean of the group's other samples (RLOO)",
            needs=_COMPARES_A_GROUP,
        ),
    ]
