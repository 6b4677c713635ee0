"""Group-relative advantage estimators: GRPO and Dr. GRPO."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import DrGrpoConfig, GroupNormConfig

_COMPARES_A_GROUP = frozenset({"group>=2"})


@hookimpl
def rlhf_advantage_estimators() -> list[Component[Any]]:
    return [
        Component(
            name="group_norm",
            aliases=("grpo",),
            factory="rlhf_plugin_grpo.components:GroupNorm",
            config=GroupNormConfig,
            summary="reward minus its group's mean, divided by its group's standard deviation (GRPO)",
            needs=_COMPARES_A_GROUP,
        ),
        Component(
            name="dr_grpo",
            factory="rlhf_plugin_grpo.components:DrGrpo",
            config=DrGrpoConfig,
            summary="reward minus its group's mean (Dr. GRPO); with aggregation seq-mean-token-sum-norm",
            needs=_COMPARES_A_GROUP,
        ),
    ]
