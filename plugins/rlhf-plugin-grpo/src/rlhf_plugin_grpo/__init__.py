"""GRPO and its relatives: advantages from comparing the samples of a prompt."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import (
    DrGrpoConfig,
    GdpoConfig,
    GigpoConfig,
    GroupNormConfig,
    GrpoPasskConfig,
    HierarchicalGrpoConfig,
    MaxRlConfig,
)
from .loss_config import GspoConfig

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
            summary="reward minus its group's mean, over a constant length (Dr. GRPO)",
            needs=_COMPARES_A_GROUP,
            provides=frozenset({"aggregation:seq-mean-token-sum-norm"}),
        ),
        Component(
            name="grpo_passk",
            factory="rlhf_plugin_grpo.components:GrpoPassk",
            config=GrpoPasskConfig,
            summary="what a sample adds to the best of its group (pass@k)",
            needs=_COMPARES_A_GROUP,
        ),
        Component(
            name="maxrl",
            factory="rlhf_plugin_grpo.components:MaxRl",
            config=MaxRlConfig,
            summary="reward minus its group's mean, divided by that mean (maximum likelihood RL)",
            needs=_COMPARES_A_GROUP,
        ),
        Component(
            name="gdpo",
            factory="rlhf_plugin_grpo.components:Gdpo",
            config=GdpoConfig,
            summary="several rewards, each normalized within its group by itself, then summed (GDPO)",
            needs=_COMPARES_A_GROUP | {"reward"},
        ),
        Component(
            name="gigpo",
            factory="rlhf_plugin_grpo.components:Gigpo",
            config=GigpoConfig,
            summary="GRPO of episodes, plus GRPO of turns that started from the same text (GiGPO)",
            needs=_COMPARES_A_GROUP | {"observations"},
        ),
        Component(
            name="hierarchical_grpo",
            factory="rlhf_plugin_grpo.components:HierarchicalGrpo",
            config=HierarchicalGrpoConfig,
            summary="rewards against those of the same episode and starting text (proposer and solvers)",
            needs=_COMPARES_A_GROUP | {"observations"},
        ),
    ]


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    # Both are losses of a sequence: its tokens are averaged first.
    provides = frozenset({"aggregation:seq-mean-token-mean", "off_policy"})
    return [
        Component(
            name="gspo",
            factory="rlhf_plugin_grpo.losses:GspoLoss",
            config=GspoConfig,
            summary="clipped ratio of the whole sequence, per token its geometric mean (GSPO)",
            provides=provides,
        ),
        Component(
            name="gspo_token",
            factory="rlhf_plugin_grpo.losses:GspoTokenLoss",
            config=GspoConfig,
            summary="gspo for advantages that differ within a sequence (GSPO-token)",
            provides=provides,
        ),
    ]
